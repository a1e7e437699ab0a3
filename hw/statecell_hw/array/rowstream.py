"""Row stream: walks the rows of a pass through the page table, one row a cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.layouts import pass_layout

GAP = formats.LOOKAHEAD + 2
"""Idle cycles between two passes: the softmax must not see the next pass in the look-ahead of the last row."""


def tag_layout(geometry: Geometry) -> data.StructLayout:
    """What accompanies a row: its place in the pass, the pass's lane count, the lanes that see it, its physical row."""
    return data.StructLayout({
        "first": 1,
        "last": 1,
        "lanes": range(geometry.lanes + 1),
        "visible": geometry.lanes,
        "row": range(geometry.rows),
    })


class TableWrite(wiring.Signature):
    """Write port of the page table: with ``en``, entry ``index`` (tile slot * pages_per_slot + page) := ``page``."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__({
            "en": Out(1),
            "index": Out(range(geometry.tile_slots * geometry.pages_per_slot)),
            "page": Out(range(geometry.pages)),
        })


class TableRead(wiring.Signature):
    """Read port of the page table: ``page`` is the entry ``index`` of the cycle before."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__({
            "index": Out(range(geometry.tile_slots * geometry.pages_per_slot)),
            "page": In(range(geometry.pages)),
        })


class RowStream(wiring.Component):
    """Pass generator and page table.

    A pass is accepted from ``pass_`` while no other runs, the gap after the last one is over and ``allowed`` is high.
    Its first row is issued in the next cycle, then one row each cycle without a bubble; ``valid`` and ``tag`` follow
    ``latency`` cycles after a row was issued. Between the last row of a pass and the first of the next are at least
    ``GAP`` idle cycles: the interval of passes is their rows plus ``GAP``. ``shift`` is that of the accepted pass.
    ``first`` < ``end`` is required. An entry of the page table must not be written in the cycle that reads it.
    Reset ends a pass; the page table is not reset.
    """

    pass_: stream.Interface
    allowed: Signal
    table_write: wiring.FlippedInterface
    table_read: wiring.FlippedInterface
    valid: Signal
    tag: data.View
    shift: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        super().__init__({
            "pass_": In(stream.Signature(pass_layout(geometry))),
            "allowed": In(1),
            "table_write": In(TableWrite(geometry)),
            "table_read": In(TableRead(geometry)),
            "valid": Out(1),
            "tag": Out(tag_layout(geometry)),
            "shift": Out(range(formats.SHIFT_LIMIT + 1)),
        })

    @property
    def latency(self) -> int:
        """Cycles from a row's issue to its tag: the page table's read."""
        return 1

    @property
    def accept_latency(self) -> int:
        """Cycles from the acceptance of a pass to the issue of its first row."""
        return 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        table: Memory = Memory(shape=range(max(2, g.pages)), depth=g.tile_slots * g.pages_per_slot, init=[])
        m.submodules.table = table
        write, walk, look = table.write_port(), table.read_port(), table.read_port()
        m.d.comb += [
            write.en.eq(self.table_write.en), write.addr.eq(self.table_write.index),
            write.data.eq(self.table_write.page),
            look.addr.eq(self.table_read.index), self.table_read.page.eq(look.data),
        ]
        running = Signal()
        first = Signal()
        gap = Signal(range(GAP))
        row = Signal(range(g.slot_rows), reset_less=True)
        current: Any = Signal(pass_layout(g), reset_less=True)
        last = Signal(reset_less=True)  # with the row
        free = Signal(init=1)  # neither a pass nor its gap
        start = self.pass_.payload.first
        m.d.comb += [
            self.pass_.ready.eq(free & self.allowed),
            self.shift.eq(current.shift),
        ]
        with m.If(self.pass_.valid & self.pass_.ready):
            m.d.sync += [
                running.eq(1), first.eq(1), current.eq(self.pass_.payload), row.eq(start), free.eq(0),
                last.eq(start + 1 == self.pass_.payload.end),
            ]
        with m.If(running):
            m.d.sync += [row.eq(row + 1), first.eq(0), last.eq(row + 2 == current.end)]
            with m.If(last):
                # the cycle that accepts the next pass is idle too
                m.d.sync += [running.eq(0), gap.eq(GAP - 1)]
        with m.If(gap != 0):
            m.d.sync += [gap.eq(gap - 1), free.eq(gap == 1)]

        offset = ceil_log2(g.page_rows)
        m.d.comb += [walk.en.eq(running), walk.addr.eq(Cat(row[offset:], current.slot))]
        held: Any = Signal(tag_layout(g), reset_less=True)
        within = Signal(offset, reset_less=True)
        m.d.sync += self.valid.eq(running)
        with m.If(running):
            m.d.sync += [
                within.eq(row[:offset]), held.first.eq(first), held.last.eq(last), held.lanes.eq(current.lanes),
            ]
            m.d.sync += [
                held.visible[lane].eq(current.active[lane] & (current.start[lane] <= row) & (row < current.end_[lane]))
                for lane in range(g.lanes)
            ]
        m.d.comb += [
            self.tag.first.eq(held.first), self.tag.last.eq(held.last), self.tag.lanes.eq(held.lanes),
            self.tag.visible.eq(held.visible), self.tag.row.eq(Cat(within, walk.data)),
        ]
        return m
