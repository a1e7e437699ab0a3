"""READ_ROWS and WRITE_ROWS: stored rows as they are, key row and value row in turn."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry
from statecell_hw.layouts import RowWrite


class RowReader(wiring.Component):
    """Reads rows of an idle tile into a stream of words.

    Members
    -------
    start, count: read `count` rows, at least one, from the cursor's row on.
    busy: not all words were taken.
    cursor_valid, cursor_step: the row that the tile is to read; it goes there by itself.
    read_en: the tile reads both banks; `key` and `value` are valid `read_latency` cycles later.
    o: payload words.
    """

    start: Signal
    count: Signal
    busy: Signal
    cursor_valid: Signal
    cursor_step: Signal
    read_en: Signal
    key: Signal
    value: Signal
    o: stream.Interface

    def __init__(self, g: Geometry, *, read_latency: int) -> None:
        self.g = g
        self.read_latency = read_latency
        super().__init__(
            {
                "start": In(1),
                "count": In(range(g.slot_rows + 1)),
                "busy": Out(1),
                "cursor_valid": In(1),
                "cursor_step": Out(1),
                "read_en": Out(1),
                "key": In(g.row_bits),
                "value": In(g.row_bits),
                "o": Out(stream.Signature(8 * g.link_bytes)),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g = self.g
        word_bits, raw_bits = 8 * g.link_bytes, 8 * g.row_bytes
        words = 2 * g.row_bytes // g.link_bytes
        left = Signal(range(g.slot_rows + 1))
        wait = Signal(range(self.read_latency + 1))
        there = Signal()  # the rows are
        # The pair takes the rows, or moves on a cycle after its word was taken: registers, as they drive its many bits.
        moves, sent = Signal(), Signal()
        index = Signal(range(words))
        pair = Signal(2 * raw_bits, reset_less=True)
        key, value = Signal(raw_bits), Signal(raw_bits)
        m.d.comb += [
            self.o.payload.eq(Mux(moves, pair[word_bits:], pair)),
            key.eq(self.key),
            value.eq(self.value),
        ]
        m.d.sync += [moves.eq(self.o.valid & self.o.ready), sent.eq(self.o.valid)]
        with m.If(moves):
            m.d.sync += pair.eq(Mux(sent, pair >> word_bits, Cat(key, value)))
        with m.FSM():
            with m.State("ASK"):
                m.d.comb += self.read_en.eq(self.busy & self.cursor_valid)
                m.d.sync += [wait.eq(self.read_latency - 1), there.eq(self.read_latency == 1)]
                with m.If(self.read_en):
                    m.d.sync += moves.eq(self.read_latency == 1)
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.sync += [wait.eq(wait - 1), there.eq(wait == 1), moves.eq(wait == 1)]
                with m.If(there):
                    m.d.sync += self.cursor_step.eq(1)
                    m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += self.o.valid.eq(sent | ~moves)  # always: the rows came before
                m.d.sync += self.cursor_step.eq(0)
                with m.If(self.o.ready):
                    m.d.sync += index.eq(index + 1)
                    with m.If(index == words - 1):
                        m.d.sync += [index.eq(0), left.eq(left - 1), self.busy.eq(left != 1)]
                        m.next = "ASK"
        with m.If(self.start):
            m.d.sync += [left.eq(self.count), self.busy.eq(1)]
        return m


class RowWriter(wiring.Component):
    """Collects raw rows from the payload and writes them to a tile.

    One word a cycle but for the cursor's look-up at each row. A row that the payload does not complete is not written.

    Members
    -------
    start: a new command begins.
    i: payload words.
    cursor_valid, cursor_row, cursor_step: the row to write.
    busy: a complete row is not written yet.
    write: write port of the tile.
    """

    start: Signal
    i: stream.Interface
    cursor_valid: Signal
    cursor_row: Signal
    cursor_step: Signal
    busy: Signal
    write: Any

    def __init__(self, g: Geometry) -> None:
        self.g = g
        super().__init__(
            {
                "start": In(1),
                "i": In(stream.Signature(8 * g.link_bytes)),
                "cursor_valid": In(1),
                "cursor_row": In(range(g.rows)),
                "cursor_step": Out(1),
                "busy": Out(1),
                "write": Out(RowWrite(g)),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g = self.g
        words, word_bits = g.row_bytes // g.link_bytes, 8 * g.link_bytes
        # `raw` takes every word but the last a cycle after `word` did, so that a register enables its many bits.
        raw, word = Signal((words - 1) * word_bits, reset_less=True), Signal(word_bits, reset_less=True)
        moves = Signal()
        index = Signal(range(words))
        value = Signal()  # the row collected is the value row
        m.d.comb += [
            self.i.ready.eq(~self.busy),
            self.write.row.eq(self.cursor_row),
            self.write.data.eq(Cat(raw, word)),
        ]
        m.d.sync += self.cursor_step.eq(self.write.value_en)  # falls in time: the next row has a word at least
        with m.If(self.busy & self.cursor_valid):
            m.d.comb += [self.write.key_en.eq(~value), self.write.value_en.eq(value)]
            m.d.sync += [self.busy.eq(0), value.eq(~value)]
        m.d.sync += moves.eq(0)
        with m.If(moves):
            m.d.sync += raw.eq(Cat(raw, word)[word_bits:])
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                word.eq(self.i.payload),
                moves.eq(index != words - 1),
                index.eq(Mux(index == words - 1, 0, index + 1)),
                self.busy.eq(index == words - 1),
            ]
        with m.If(self.start):
            m.d.sync += [index.eq(0), value.eq(0), self.busy.eq(0)]
        return m
