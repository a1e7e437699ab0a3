"""Normaliser: accumulators divided by the sum of the softmax weights, ``word`` elements a cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.attention.score import saturate
from statecell_hw.layouts import output_layout

FRACTION_BITS = formats.INVERSE_INDEX + formats.INVERSE_FRACTION
"""Bits of the normaliser below its leading one that the reciprocal takes."""
INVERSE = data.StructLayout({
    "base": formats.INVERSE_BITS + 1,
    "slope": max(slope for _, slope in formats.INVERSE_TABLE).bit_length(),
})
"""One piece of the reciprocal table."""


class Normalise(wiring.Component):
    """Quotients of the drain registers; formulas in docs/numerics.md, section 6.

    ``done`` says that the accumulators hold the result of a pass of which ``lanes`` (>= 1) lanes are wanted. As soon as
    the drain registers are free, which may be at once, ``capture`` is high for a cycle; the next ``done`` must not come
    before that. The words of lanes 0 to ``lanes`` - 1 follow on ``o``, ``vector_words`` each: the first is valid
    ``latency`` cycles after ``capture``, then one a cycle unless ``o.ready`` holds them up. ``drained`` is high in the
    cycle that reads the last word out of the drain registers; ``busy`` while a result or a word is in the block.
    """

    done: Signal
    lanes: Signal
    capture: Signal
    drain: list[list[Signal]]
    drain_sums: list[Signal]
    drained: Signal
    busy: Signal
    o: stream.Interface

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "done": In(1),
            "lanes": In(range(g.lanes + 1)),
            "capture": Out(1),
            "drain": In(signed(g.accumulator_bits)).array(g.lanes, g.head_dim),
            "drain_sums": In(g.normaliser_bits).array(g.lanes),
            "drained": Out(1),
            "busy": Out(1),
            "o": Out(stream.Signature(output_layout(g))),
        })

    @property
    def latency(self) -> int:
        """Cycles from ``capture`` to the first word: capture, select, log2, align, invert, multiply, round."""
        return 7

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        advance = Signal()
        m.d.comb += advance.eq(~self.o.valid | self.o.ready)
        valid = [self.capture, *(Signal(name=f"valid_{i}") for i in range(1, self.latency)), self.o.valid]
        words = g.lanes * g.vector_words
        # -- which word of which lane ----------------------------------------------------------------------------------
        pending = Signal()
        wanted = Signal.like(self.lanes, name="wanted", reset_less=True)
        count = Signal.like(self.lanes, name="count", reset_less=True)
        lane = Signal(range(g.lanes), reset_less=True)
        within = Signal(range(g.vector_words), reset_less=True)
        word = [Signal(range(words), name=f"word_{i}", reset_less=True) for i in range(3)]
        final = [Signal(name=f"final_{i}", reset_less=True) for i in range(3)]
        m.d.comb += [
            self.capture.eq((self.done | pending) & ~(valid[1] | valid[2] | valid[3])),
            final[0].eq((within == g.vector_words - 1) & (lane + 1 == count)),
            self.drained.eq(advance & valid[3] & final[2]),
            self.busy.eq(pending | Cat(valid[1:]).any()),
        ]
        with m.If(self.done):
            m.d.sync += wanted.eq(self.lanes)
        m.d.sync += pending.eq((self.done | pending) & ~self.capture)
        with m.If(self.capture):
            m.d.sync += [
                valid[1].eq(1), lane.eq(0), within.eq(0), word[0].eq(0), count.eq(Mux(self.done, self.lanes, wanted)),
            ]
        with m.Elif(advance & valid[1]):
            m.d.sync += [within.eq(within + 1), word[0].eq(word[0] + 1)]
            with m.If(within == g.vector_words - 1):
                m.d.sync += [within.eq(0), lane.eq(lane + 1)]
            with m.If(final[0]):
                m.d.sync += valid[1].eq(0)
        with m.If(advance):
            m.d.sync += [valid[i].eq(valid[i - 1]) for i in range(2, len(valid))]
            m.d.sync += [word[i].eq(word[i - 1]) for i in (1, 2)]
            m.d.sync += [final[i].eq(final[i - 1]) for i in (1, 2)]

        # -- one reciprocal, worked out again for each word of a lane --------------------------------------------------
        table: Memory = Memory(
            shape=INVERSE, depth=len(formats.INVERSE_TABLE),
            init=[{"base": base, "slope": slope} for base, slope in formats.INVERSE_TABLE],
        )
        m.submodules.table = table
        piece: Any = table.read_port()
        sums = [Signal(g.normaliser_bits, name=f"sum_{i}", reset_less=True) for i in range(2)]
        log = [Signal(range(g.normaliser_bits), name=f"log_{i}", reset_less=True) for i in range(2)]
        rest = Signal(formats.INVERSE_FRACTION, reset_less=True)
        inverse = Signal(formats.INVERSE_BITS + 1, reset_less=True)
        fraction = (sums[1].shift_left(FRACTION_BITS) >> log[0])[:FRACTION_BITS]
        m.d.comb += [piece.en.eq(advance & valid[3]), piece.addr.eq(fraction[formats.INVERSE_FRACTION:])]
        with m.If(advance & valid[1]):
            m.d.sync += sums[0].eq(Array(self.drain_sums)[lane])
        with m.If(advance & valid[2]):
            m.d.sync += [sums[1].eq(sums[0]), log[0].eq(0)]
            for i in range(1, g.normaliser_bits):
                with m.If(sums[0][i]):
                    m.d.sync += log[0].eq(i)
        with m.If(advance & valid[3]):
            m.d.sync += [rest.eq(fraction[:formats.INVERSE_FRACTION]), log[1].eq(log[0])]
        with m.If(advance & valid[4]):
            m.d.sync += inverse.eq(piece.data.base - (piece.data.slope * rest >> formats.INVERSE_FRACTION))

        # -- the word's elements ---------------------------------------------------------------------------------------
        half = 1 << (formats.INVERSE_BITS - 1)
        for p in range(g.word):
            element = Signal(signed(g.accumulator_bits), name=f"element_{p}", reset_less=True)
            scaled = Signal(signed(formats.OUTPUT_BITS + 1), name=f"scaled_{p}", reset_less=True)
            product = Signal(signed(len(scaled) + len(inverse)), name=f"product_{p}", reset_less=True)
            choices = Array(self.drain[w // g.vector_words][w % g.vector_words * g.word + p] for w in range(words))
            with m.If(advance & valid[3]):
                m.d.sync += element.eq(choices[word[2]])
            with m.If(advance & valid[4]):
                m.d.sync += scaled.eq(saturate(element.shift_left(FRACTION_BITS) >> log[1], len(scaled)))
            with m.If(advance & valid[5]):
                m.d.sync += product.eq(scaled * inverse)
            with m.If(advance & valid[6]):
                rounded = (product + half) >> formats.INVERSE_BITS
                m.d.sync += self.o.payload.data[p].eq(saturate(rounded, formats.OUTPUT_BITS))
        return m
