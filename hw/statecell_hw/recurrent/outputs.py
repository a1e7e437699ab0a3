"""Outputs of rows, which cannot wait, as link words, which can."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.link.deframer import word_layout
from statecell_hw.recurrent.operands import channel_limit

OUTPUT_BITS = 32
"""Bits of an output in a payload, sign-extended."""


class Outputs(wiring.Component):
    """Packs the outputs of one head after the other into words, ``last`` in the last word of a head.

    ``value`` comes with ``valid``, ``ends`` with that of a head's last channel, which fills a word. Before a head of
    ``channels`` begins, pulsed with ``begins``, its words must be ``allowed``: then they have places, so that no output
    ever waits. A word is on ``o`` ``latency`` cycles after its last output. Reset drops all words.
    """

    channels: Signal
    allowed: Signal
    begins: Signal
    valid: Signal
    value: Signal
    ends: Signal
    o: stream.Interface

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "channels": In(range(channel_limit(g) + 1)),
            "allowed": Out(1),
            "begins": In(1),
            "valid": In(1),
            "value": In(signed(formats.RECUR_BITS)),
            "ends": In(1),
            "o": Out(stream.Signature(word_layout(g))),
        })

    @property
    def per_word(self) -> int:
        """Outputs of a link word."""
        return 8 * self.geometry.link_bytes // OUTPUT_BITS

    @property
    def depth(self) -> int:
        """Words that have places: two heads of the most channels."""
        return 2 * channel_limit(self.geometry) // self.per_word

    @property
    def latency(self) -> int:
        """Cycles from a word's last output to the word: the queue and its register."""
        return 2

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g, per_word = self.geometry, self.per_word
        m.submodules.queue = queue = SyncFIFOBuffered(width=8 * g.link_bytes + 1, depth=self.depth)
        words = self.channels >> exact_log2(per_word)
        room = Signal(range(self.depth + 1), init=self.depth)
        taken = self.o.valid & self.o.ready
        long = Signal(signed(OUTPUT_BITS))
        m.d.comb += [
            self.allowed.eq(room >= words), long.eq(self.value),
            self.o.valid.eq(queue.r_rdy), queue.r_en.eq(taken), self.o.payload.as_value().eq(queue.r_data),
        ]
        m.d.sync += room.eq(room + taken - Mux(self.begins, words, 0))
        if per_word == 1:
            m.d.comb += [queue.w_en.eq(self.valid), queue.w_data.eq(Cat(long, self.ends))]
            return m
        place = Signal(range(per_word))
        before = Signal(OUTPUT_BITS * (per_word - 1), reset_less=True)
        with m.If(self.valid):
            m.d.sync += [place.eq(place + 1), before.eq(Cat(before, long)[OUTPUT_BITS:])]
        m.d.comb += [
            queue.w_en.eq(self.valid & (place == per_word - 1)), queue.w_data.eq(Cat(before, long, self.ends)),
        ]
        return m
