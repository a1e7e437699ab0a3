"""MAP: page numbers from the payload into the page table."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Elaboratable, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.rowstream import TableWrite


class Mapper(wiring.Component):
    """Writes page numbers behind those a slot has mapped; they count once the command is committed.

    One page number a cycle. A number that is no page sets `bad` and is not written.

    Members
    -------
    start, slot, pages, count: a MAP of `count` pages to tile slot `slot`, which has mapped `pages`.
    i: payload words.
    busy: words taken are not written yet.
    bad: a number since `start` was no page of the tile.
    table: write port of the tile's page table.
    """

    start: Signal
    slot: Signal
    pages: Signal
    count: Signal
    i: stream.Interface
    busy: Signal
    bad: Signal
    table: Any

    def __init__(self, g: Geometry) -> None:
        self.g = g
        limit = range(g.pages_per_slot + 1)
        super().__init__(
            {
                "start": In(1),
                "slot": In(range(g.tile_slots)),
                "pages": In(limit),
                "count": In(limit),
                "i": In(stream.Signature(8 * g.link_bytes)),
                "busy": Out(1),
                "bad": Out(1),
                "table": Out(TableWrite(g)),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g = self.g
        page_bits = (g.pages_per_slot - 1).bit_length()
        slot = Signal(range(g.tile_slots))
        position = Signal(page_bits)
        left = Signal(range(g.pages_per_slot + 1))
        word = Signal(8 * g.link_bytes, reset_less=True)
        items = Signal(range(g.word + 1))  # numbers still in the word
        number = word[: formats.VECTOR_BITS]
        m.d.comb += [
            self.busy.eq(items != 0),
            self.i.ready.eq(~self.busy),
            self.table.index.eq(Cat(position, slot)),
            self.table.page.eq(number),
        ]
        with m.If(self.busy):
            m.d.sync += [word.eq(word >> formats.VECTOR_BITS), items.eq(items - 1)]
            with m.If(left != 0):
                m.d.comb += self.table.en.eq(number < g.pages)
                m.d.sync += [left.eq(left - 1), position.eq(position + 1)]
                with m.If(number >= g.pages):
                    m.d.sync += self.bad.eq(1)
        with m.Elif(self.i.valid):
            m.d.sync += [word.eq(self.i.payload), items.eq(g.word)]
        with m.If(self.start):
            m.d.sync += [
                slot.eq(self.slot),
                position.eq(self.pages),
                left.eq(self.count),
                items.eq(0),
                self.bad.eq(0),
            ]
        return m
