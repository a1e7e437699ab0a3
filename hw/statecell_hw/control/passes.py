"""Pass queue: ATTENDs whose frames have ended wait for their queries, then for their tile."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry
from statecell_hw.layouts import pass_layout

DEPTH = 4
"""ATTENDs that may wait: one with its queries in the shadow registers, others behind it."""

INTERVAL = 3
"""Cycles from one ATTEND to the next, if nothing waits: out of the queue, its queries counted, started."""


def attend_layout(g: Geometry) -> data.StructLayout:
    """An ATTEND that sent `sent` query vectors to the row writer; only a `good` one becomes the pass `pass_`."""
    return data.StructLayout({"tile": range(g.tiles), "good": 1, "sent": range(g.lanes + 1), "pass_": pass_layout(g)})


def result_layout(g: Geometry) -> data.StructLayout:
    """Which tile answers next, with how many vectors."""
    return data.StructLayout({"tile": range(g.tiles), "lanes": range(g.lanes + 1)})


class PassQueue(wiring.Component):
    """Starts passes in the order of their commands, each when all its queries have arrived in its tile.

    An ATTEND that failed after it had sent queries goes the same way, but ends in `drop`, which frees the tile's shadow
    registers. Latency to `start`: 1 cycle from the last query, 3 from `i`; interval INTERVAL.

    Members
    -------
    i: ATTENDs, at the end of their frames.
    arrived: a query was loaded into its tile's shadow registers.
    tile: tile that `start` and `drop` are for.
    start: passes for the tile.
    drop: the tile's shadow queries are to be forgotten.
    order: results to expect, one for each pass started.
    idle: nothing waits.
    """

    i: stream.Interface
    arrived: Signal
    tile: Signal
    start: stream.Interface
    drop: Signal
    order: stream.Interface
    idle: Signal

    def __init__(self, g: Geometry) -> None:
        self.g = g
        super().__init__(
            {
                "i": In(stream.Signature(attend_layout(g))),
                "arrived": In(1),
                "tile": Out(range(g.tiles)),
                "start": Out(stream.Signature(pass_layout(g))),
                "drop": Out(1),
                "order": Out(stream.Signature(result_layout(g))),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g = self.g
        layout = attend_layout(g)
        m.submodules.waiting = waiting = SyncFIFO(width=layout.size, depth=DEPTH)
        # A tile has at most two passes that are not drained, so that this queue is never full when one starts.
        m.submodules.results = results = SyncFIFO(width=result_layout(g).size, depth=2 * g.tiles + 1)
        # the oldest ATTEND, and whether it is there and has its queries
        head: Any = Signal(layout, reset_less=True)
        held, complete = Signal(), Signal()
        result = data.View(result_layout(g), results.w_data)
        queries = Signal(range((DEPTH + 2) * g.lanes))  # arrived and not used up
        done = Signal()
        room = Signal(init=1)  # for a result, as of the cycle before: one pass starts in INTERVAL cycles at most
        m.d.sync += room.eq(results.w_rdy)
        m.d.comb += [
            waiting.w_data.eq(self.i.payload),
            waiting.w_en.eq(self.i.valid),
            self.i.ready.eq(waiting.w_rdy),
            self.tile.eq(head.tile),
            self.start.payload.eq(head.pass_),
            self.start.valid.eq(complete & head.good & room),
            self.drop.eq(complete & ~head.good),
            done.eq(self.drop | (self.start.valid & self.start.ready)),
            waiting.r_en.eq(~held),
            result.tile.eq(head.tile),
            result.lanes.eq(head.pass_.lanes),
            results.w_en.eq(self.start.valid & self.start.ready),
            self.order.payload.as_value().eq(results.r_data),
            self.order.valid.eq(results.r_rdy),
            results.r_en.eq(self.order.ready),
            self.idle.eq(~waiting.r_rdy & ~held & ~results.r_rdy),
        ]
        with m.If(~held):
            m.d.sync += [head.eq(waiting.r_data), held.eq(waiting.r_rdy)]
        # a query that arrives counts in the next cycle already
        m.d.sync += complete.eq(
            held & ~done & ((queries >= head.sent) | (self.arrived & (queries + 1 == head.sent)))
        )
        with m.If(done):
            m.d.sync += [queries.eq(queries - head.sent + self.arrived), held.eq(0)]
        with m.Else():
            m.d.sync += queries.eq(queries + self.arrived)
        return m
