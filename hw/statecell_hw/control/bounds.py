"""ATTEND's row ranges: start and end of each query, checked and joined."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Elaboratable, Module, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats, frame
from statecell.spec.geometry import Geometry


class Bounds(wiring.Component):
    """Takes the range blocks of an ATTEND, then looks at one query a cycle.

    `bad`: a range is empty or ends beyond `rows`; if none is, `first` and `end` enclose all. All three are valid
    `count` + 2 cycles after the last range word: before the query vectors that follow can have passed.

    Members
    -------
    start, count, rows: an ATTEND of `count` queries on a slot of `rows` rows.
    i: payload words; taken only while ranges are missing.
    full: all range words of the command were taken.
    busy: ranges are still looked at.
    bad, first, end: the result.
    starts, ends: the ranges as sent, by query.
    """

    start: Signal
    count: Signal
    rows: Signal
    i: stream.Interface
    full: Signal
    busy: Signal
    bad: Signal
    first: Signal
    end: Signal
    starts: data.View
    ends: data.View

    def __init__(self, g: Geometry) -> None:
        self.g = g
        limit = range(g.slot_rows + 1)
        limits = data.ArrayLayout(unsigned(formats.VECTOR_BITS), g.lanes)
        super().__init__(
            {
                "start": In(1),
                "count": In(range(g.lanes + 1)),
                "rows": In(limit),
                "i": In(stream.Signature(8 * g.link_bytes)),
                "full": Out(1),
                "busy": Out(1),
                "bad": Out(1),
                "first": Out(formats.VECTOR_BITS),
                "end": Out(formats.VECTOR_BITS),
                "starts": Out(limits),
                "ends": Out(limits),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g, bits = self.g, formats.VECTOR_BITS
        block_words = frame.BLOCK // g.link_bytes
        per_block = frame.BLOCK * 8 // bits // 2  # ranges in a block
        most = -(-g.lanes // per_block) * block_words
        index = Signal(range(most + 1))
        words = Signal(range(most + 1))
        lane = Signal(range(g.lanes + 1))
        chosen, initial = Signal(), Signal(reset_less=True)
        m.d.comb += [
            self.i.ready.eq(~self.full), self.busy.eq((lane != self.count) | chosen),
        ]
        with m.If(self.i.valid & ~self.full):
            m.d.sync += [index.eq(index + 1), self.full.eq(index + 1 == words)]
            for item in range(2 * g.lanes):
                target = (self.ends if item % 2 else self.starts)[item // 2]
                with m.If(index == item // g.word):
                    m.d.sync += target.eq(self.i.payload.word_select(item % g.word, bits))
        # choose a query's range, compare it a cycle later; a range with a bit that no row has is bad whatever the rest
        within = len(self.rows)
        start, end = Signal(within, reset_less=True), Signal(within, reset_less=True)
        beyond = Signal(reset_less=True)
        given = [Array(ranges[i] for i in range(g.lanes))[lane] for ranges in (self.starts, self.ends)]
        m.d.sync += [
            start.eq(given[0]), end.eq(given[1]), beyond.eq((given[0] | given[1])[within:].any()),
            initial.eq(lane == 0), chosen.eq(self.full & (lane != self.count)),
        ]
        with m.If(self.full & (lane != self.count)):
            m.d.sync += lane.eq(lane + 1)
        with m.If(chosen):
            with m.If(beyond | (start >= end) | (end > self.rows)):
                m.d.sync += self.bad.eq(1)
            with m.If(initial | (start < self.first)):
                m.d.sync += self.first.eq(start)
            with m.If(initial | (end > self.end)):
                m.d.sync += self.end.eq(end)
        with m.If(self.start):
            blocks = (self.count + (per_block - 1)) >> (per_block.bit_length() - 1)
            m.d.sync += [
                index.eq(0), words.eq(blocks * block_words), self.full.eq(self.count == 0), lane.eq(0), chosen.eq(0),
                self.bad.eq(0),
            ]
        return m
