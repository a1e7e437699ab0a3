"""Vectors of APPEND and ATTEND: payload words with the job that the row writer does with each vector."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry
from statecell_hw.layouts import Kind, job_layout


def vector_word_layout(g: Geometry) -> data.StructLayout:
    """A word of a vector; `job` belongs to the vector and is valid in its `first` word."""
    return data.StructLayout({"data": 8 * g.link_bytes, "first": 1, "job": job_layout(g)})


class Ingest(wiring.Component):
    """Counts payload words into vectors and gives each vector its job.

    APPEND: key and value vector of each token in turn, rows from the cursor. ATTEND: one query vector per lane.
    Latency 0, one word a cycle once the cursor has found the first row. A frame that ends inside a vector leaves no
    half vector behind: while `flush` is high the open vector is filled up with zeros.

    Members
    -------
    start: a new command begins; `attend`, `tile`, `wide` and `zero_point` are its arguments and must stay.
    i: payload words.
    o: words of whole vectors.
    flush: no more payload comes.
    open: a vector is begun and not complete.
    vectors: vectors begun since `start`, for ATTEND.
    cursor_valid, cursor_row, cursor_following, cursor_step: the row of the token whose key vector comes next.
    """

    start: Signal
    attend: Signal
    tile: Signal
    wide: Signal
    zero_point: Signal
    i: stream.Interface
    o: stream.Interface
    flush: Signal
    open: Signal
    vectors: Signal
    cursor_valid: Signal
    cursor_row: Signal
    cursor_following: Signal
    cursor_step: Signal

    def __init__(self, g: Geometry) -> None:
        self.g = g
        super().__init__(
            {
                "start": In(1),
                "attend": In(1),
                "tile": In(range(g.tiles)),
                "wide": In(1),
                "zero_point": In(1),
                "i": In(stream.Signature(8 * g.link_bytes)),
                "o": Out(stream.Signature(vector_word_layout(g))),
                "flush": In(1),
                "open": Out(1),
                "vectors": Out(range(g.lanes + 1)),
                "cursor_valid": In(1),
                "cursor_row": In(range(g.rows)),
                "cursor_following": In(range(g.rows)),
                "cursor_step": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g = self.g
        index = Signal(range(g.vector_words))
        first = Signal(init=1)  # index is 0
        value = Signal()  # the token's second vector
        # The token's rows are held for both vectors, whose time the cursor has to go on.
        placed = Signal()  # they are, or it needs none
        row, following = Signal.like(self.cursor_row, reset_less=True), Signal.like(self.cursor_row, reset_less=True)
        leaves, last, take = Signal(), Signal(), Signal()
        job = self.o.payload.job
        m.d.comb += [
            last.eq(index == g.vector_words - 1),
            self.open.eq(~first),
            self.o.valid.eq(Mux(self.flush, self.open, self.i.valid & placed)),
            self.i.ready.eq(self.o.ready & placed),
            take.eq(self.o.valid & self.o.ready),
            leaves.eq(take & last & value),
            self.o.payload.data.eq(Mux(self.flush, 0, self.i.payload)),
            self.o.payload.first.eq(first),
            job.kind.eq(Mux(self.attend, Kind.QUERY, Mux(value, Kind.VALUE, Kind.KEY))),
            job.tile.eq(self.tile),
            job.lane.eq(self.vectors),
            job.row.eq(row),
            job.following.eq(following),
            job.wide.eq(self.wide & ~self.attend),
            job.zero_point.eq(self.zero_point & ~self.attend),
        ]
        m.d.sync += [
            self.cursor_step.eq(take & first & ~value & ~self.attend),
            placed.eq(self.attend | (placed & ~leaves) | self.cursor_valid),
        ]
        with m.If(~placed | leaves):
            m.d.sync += [row.eq(self.cursor_row), following.eq(self.cursor_following)]
        with m.If(take):
            m.d.sync += [index.eq(index + 1), first.eq(last)]
            with m.If(last):
                m.d.sync += index.eq(0)
            with m.If(first & self.attend):
                m.d.sync += self.vectors.eq(self.vectors + 1)
            with m.If(last & ~self.attend):
                m.d.sync += value.eq(~value)
        with m.If(self.start):
            m.d.sync += [self.vectors.eq(0), value.eq(0), placed.eq(0)]
        return m
