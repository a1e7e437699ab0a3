"""Row cursor: physical rows of a slot, one after the other, through the page table."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry
from statecell_hw.array.rowstream import TableRead


class Cursor(wiring.Component):
    """Looks up the physical rows of the logical rows r and r + 1 of a slot.

    `start` sets slot and r, `step` adds 1 or 2 to r; `valid` falls and comes back `latency` cycles later with the rows.
    `following` means something only if row r + 1 is mapped.

    Members
    -------
    start, slot, position: begin at logical row `position` of tile slot `slot`.
    step, by_two: go on; only while `valid`.
    valid, row, following: physical rows of r and r + 1.
    table: read port of the tile's page table.
    """

    start: Signal
    slot: Signal
    position: Signal
    step: Signal
    by_two: Signal
    valid: Signal
    row: Signal
    following: Signal
    table: Any

    def __init__(self, g: Geometry) -> None:
        self.g = g
        super().__init__(
            {
                "start": In(1),
                "slot": In(range(g.tile_slots)),
                "position": In(range(g.slot_rows + 1)),
                "step": In(1),
                "by_two": In(1),
                "valid": Out(1),
                "row": Out(range(g.rows)),
                "following": Out(range(g.rows)),
                "table": Out(TableRead(g)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from `start` or `step` to `valid`."""
        return 4

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g = self.g
        offset_bits = (g.page_rows - 1).bit_length()
        page_bits = (g.pages_per_slot - 1).bit_length()
        slot = Signal(range(g.tile_slots))
        # A step past the last row wraps; nobody uses what it finds.
        first = Signal(offset_bits + page_bits)
        second = Signal(offset_bits + page_bits)
        asked = Signal(offset_bits + page_bits)
        phase = Signal(range(self.latency - 1))
        busy = Signal()
        m.d.comb += [
            second.eq(first + 1),
            asked.eq(first),
            self.table.index.eq(Cat(asked[offset_bits:], slot)),
        ]
        with m.If(phase == 1):
            m.d.comb += asked.eq(second)
        with m.If(busy):
            m.d.sync += phase.eq(phase + 1)
            with m.Switch(phase):
                with m.Case(1):
                    m.d.sync += self.row.eq(Cat(first[:offset_bits], self.table.page))
                with m.Case(2):
                    m.d.sync += [
                        self.following.eq(Cat(second[:offset_bits], self.table.page)),
                        self.valid.eq(1),
                        busy.eq(0),
                        phase.eq(0),
                    ]
        with m.If(self.start | self.step):
            m.d.sync += [self.valid.eq(0), busy.eq(1), phase.eq(0)]
            with m.If(self.start):
                m.d.sync += [slot.eq(self.slot), first.eq(self.position)]
            with m.Elif(self.by_two):
                m.d.sync += first.eq(first + 2)
            with m.Else():
                m.d.sync += first.eq(second)
        return m
