"""Product of the token's query with its key, or with the bonus key."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import tree
from statecell_hw.attention.score import saturate
from statecell_hw.recurrent.operands import HALVES
from statecell_hw.recurrent.pipeline import Pipeline

ROUNDED = 2 * formats.KEY_FRACTION - formats.MIX_FRACTION
"""Bits of fraction that the product loses."""


class Mix(wiring.Component):
    """q . b as MIX_BITS with MIX_FRACTION, rounded and saturating; docs/numerics.md, 8.3.

    Words of q come with ``query``, then those of b with ``valid``, each vector in order and with any gaps; where it
    ``continues``, the pair of vectors is the second half of the one before. ``mix`` is that of the last pair from
    ``latency`` cycles after the last word of b on, until the first of the next. Interval 1 word. Reset forgets the
    words.
    """

    query: Signal
    valid: Signal
    continues: Signal
    i: list[Signal]
    mix: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "query": In(1),
            "valid": In(1),
            "continues": In(1),
            "i": In(signed(formats.VECTOR_BITS)).array(g.word),
            "mix": Out(signed(formats.MIX_BITS)),
        })

    @property
    def latency(self) -> int:
        """Cycles from the last word to the product: operands, products, sum, total, rounding."""
        return 5

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        memory: Memory = Memory(shape=formats.VECTOR_BITS * g.word, depth=g.vector_words, init=[])
        m.submodules.memory = memory
        write, read = memory.write_port(), memory.read_port()
        word = Signal(range(g.vector_words))
        last = word == g.vector_words - 1
        with m.If(self.query | self.valid):
            m.d.sync += word.eq(Mux(last, 0, word + 1))
        pipe = Pipeline(m, self.valid, self.latency)
        first = pipe.carry(0, (word == 0) & ~self.continues, 3, "first")
        m.d.comb += [write.en.eq(self.query), write.addr.eq(word), read.addr.eq(word)]
        products = []
        for p, i in enumerate(self.i):
            field = slice(p * formats.VECTOR_BITS, (p + 1) * formats.VECTOR_BITS)
            m.d.comb += write.data[field].eq(i)
            b = pipe.hold(0, i, f"b_{p}")
            products.append(pipe.hold(1, b * read.data[field].as_signed(), f"product_{p}"))
        total = pipe.hold(2, tree(products), "sum")
        sums = Signal(signed(len(total) + (HALVES * g.vector_words).bit_length()), reset_less=True)
        with m.If(pipe.valid[3]):
            m.d.sync += sums.eq(Mux(first, 0, sums) + total)
        rounded = ((sums >> (ROUNDED - 1)) + 1) >> 1
        m.d.comb += self.mix.eq(pipe.hold(4, saturate(rounded, formats.MIX_BITS), "mix"))
        return m
