"""Decays of a token: the slots' factors, and what the token's vectors are multiplied by."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.recurrent.factor import DECAY_BITS, INVERSE_SHIFT, Factor
from statecell_hw.recurrent.operands import FALL_BITS, OCTAVE_BITS
from statecell_hw.recurrent.tokens import WORD_BITS

ONE = 1 << (formats.FACTOR_BITS - 1)
"""A factor of 1.0."""
WEIGHTS = data.StructLayout({
    "q": formats.FACTOR_BITS, "k": formats.FACTOR_BITS, "inverse": formats.INVERSE_BITS + 1,
})
"""What a lane of q, of k and of the stored key is multiplied by."""


class FactorAccess(wiring.Signature):
    """Port for factors as they are, while no token is on its way: with ``reads``, held over both cycles, ``factors``
    are those of ``slot`` with this ``number`` (see :class:`Decays`) a cycle later; ``writes`` sets them to ``written``.
    """

    def __init__(self, geometry: Geometry, *, slots: int) -> None:
        bits = geometry.word // 2 * formats.FACTOR_BITS
        super().__init__({
            "slot": Out(range(slots)), "number": Out(range(2 * geometry.vector_words)), "reads": Out(1),
            "factors": In(bits), "writes": Out(1), "written": Out(bits),
        })


class Decays(wiring.Component):
    """Factors of all slots, one or one a lane; docs/numerics.md, 8.2.

    ``begins`` comes with a token; from the next cycle on ``slot``, ``decay`` (of a head with one), ``lane_decay`` and
    ``decay_first`` are its. Then ``reads`` asks for the factors number 0, 1, ... of its lanes, half a vector's word
    each, or once for the one factor; ``word``, a cycle later, is the word of the lanes' decays. ``done`` comes
    ``latency`` cycles after the last ``reads`` and holds: the slot's factors are decayed and whole again, and until the
    next token ``one`` says that all decays are 1.0, ``octaves`` what the one factor has lost, ``falls`` the right
    shifts of the lanes, and ``weights`` (combinational) are those of the vector's word ``place``. Factors of
    ``open_slot`` are 1.0 after ``open_en``; ``access`` reads and writes factors as they are. Interval 1 for ``reads``.
    Reset forgets all factors.
    """

    begins: Signal
    slot: Signal
    decay: Signal
    lane_decay: Signal
    decay_first: Signal
    reads: Signal
    number: Signal
    word: Signal
    open_en: Signal
    open_slot: Signal
    access: Any
    done: Signal
    one: Signal
    octaves: Signal
    falls: list[Signal]
    place: Signal
    weights: Any

    def __init__(self, geometry: Geometry, *, slots: int) -> None:
        self.geometry = g = geometry
        self.slots = slots
        self.factor = Factor(g)
        super().__init__({
            "begins": In(1),
            "slot": In(range(slots)),
            "decay": In(DECAY_BITS),
            "lane_decay": In(1),
            "decay_first": In(1),
            "reads": In(1),
            "number": In(range(2 * g.vector_words)),
            "word": In(8 * g.link_bytes),
            "open_en": In(1),
            "open_slot": In(range(slots)),
            "access": In(FactorAccess(g, slots=slots)),
            "done": Out(1),
            "one": Out(1),
            "octaves": Out(OCTAVE_BITS),
            "falls": Out(FALL_BITS).array(g.head_dim),
            "place": In(range(g.vector_words)),
            "weights": Out(WEIGHTS).array(g.word),
        })

    @property
    def latency(self) -> int:
        """Cycles from the last factor asked for to ``done``: memory, factor, weights."""
        return 1 + self.factor.latency + 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        m.submodules.factor = factor = self.factor
        bits = exact_log2(g.vector_words)
        fetched, odd, touched = Signal(), Signal(), Signal(self.slots)
        stored = Signal(range(2 * g.vector_words + 1))
        count = Mux(self.lane_decay, 2 * g.vector_words, 1)
        access = self.access
        slot, number = Mux(access.reads, access.slot, self.slot), Mux(access.reads, access.number, self.number)
        m.d.sync += [fetched.eq(self.reads), odd.eq(number[0])]
        m.d.comb += [factor.valid.eq(fetched), self.done.eq(stored == count)]
        ports: list[Any] = []
        factors = []
        # the lanes of a vector's word lie in two memories, half of them in each
        for half in range(2):
            memory: Memory = Memory(shape=factor.count * formats.FACTOR_BITS, depth=self.slots << bits, init=[])
            weights: Memory = Memory(shape=data.ArrayLayout(WEIGHTS, factor.count), depth=g.vector_words, init=[])
            m.submodules[f"factors_{half}"], m.submodules[f"weights_{half}"] = memory, weights
            read, write, keep = memory.read_port(), memory.write_port(), weights.write_port()
            here = factor.o_valid & (stored[0] == half)
            m.d.comb += [
                read.addr.eq(Cat(number[1:1 + bits], slot)),
                write.addr.eq(Cat(stored[1:1 + bits], self.slot)), write.en.eq(here),
                write.data.eq(Cat(*factor.whole)),
                keep.addr.eq(stored[1:1 + bits]), keep.en.eq(here),
            ]
            for i in range(factor.count):
                # the octaves of one factor a head are taken from its rows, as they are read
                met = Mux(self.lane_decay, factor.after[i], factor.whole[i])
                m.d.comb += [
                    keep.data[i].q.eq(Mux(self.decay_first, met, factor.before[i])),
                    keep.data[i].k.eq(met),
                    keep.data[i].inverse.eq(factor.inverse[i] >> INVERSE_SHIFT),
                ]
            with m.If(access.writes & (access.number[0] == half)):
                m.d.comb += [
                    write.en.eq(1), write.addr.eq(Cat(access.number[1:1 + bits], access.slot)),
                    write.data.eq(access.written),
                ]
            factors.append(read.data)
            ports.append(weights.read_port(domain="comb"))
            m.d.comb += ports[half].addr.eq(Mux(self.lane_decay, self.place, 0))
        known = Mux(odd, factors[1], factors[0])
        for i in range(factor.count):
            own = known.word_select(i, formats.FACTOR_BITS)
            decay = self.word.word_select(i, WORD_BITS)[:DECAY_BITS]
            m.d.comb += [
                factor.factor[i].eq(Mux(touched.bit_select(slot, 1), own, ONE)),
                factor.decay[i].eq(Mux(self.lane_decay, decay, self.decay)),
            ]
        m.d.comb += access.factors.eq(Cat(*factor.factor))
        for p, weight in enumerate(self.weights):
            lane, single = ports[p // factor.count].data[p % factor.count], ports[0].data[0]
            m.d.comb += weight.as_value().eq(Mux(self.lane_decay, lane.as_value(), single.as_value()))
        with m.If(self.begins):
            m.d.sync += [stored.eq(0), self.one.eq(1)]
        with m.If(factor.o_valid):
            m.d.sync += [stored.eq(stored + 1), self.one.eq(self.one & factor.one), self.octaves.eq(factor.octaves[0])]
        with m.If(factor.o_valid & (stored == count - 1)):
            m.d.sync += touched.bit_select(self.slot, 1).eq(1)
        for j, fall in enumerate(self.falls):
            octaves = factor.octaves[j % factor.count]
            with m.If(factor.o_valid & (stored == j // factor.count)):
                m.d.sync += fall.eq(Mux(octaves > formats.UPDATE_BITS, formats.UPDATE_BITS, octaves))
        with m.If(self.open_en):
            m.d.sync += touched.bit_select(self.open_slot, 1).eq(0)
        with m.If(access.writes):
            m.d.sync += touched.bit_select(access.slot, 1).eq(1)
        return m
