"""Slot table: which slots are open, their rows and their mapped pages."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry
from statecell_hw.recurrent.opening import BLOCK_BITS
from statecell_hw.recurrent.operands import ENTRIES


def slot_layout(g: Geometry) -> data.StructLayout:
    """What the device knows of a slot: ``open``; ``rows`` held and ``pages`` mapped, 0 for a slot just opened.

    With states also whether it is ``recurrent``, the blocks of its tokens' payloads, of their outputs and of a
    snapshot, its tokens from one write-back to the next, and how many of them are ``logged``.
    """
    fields: dict[str, Any] = {"open": 1, "rows": range(g.slot_rows + 1), "pages": range(g.pages_per_slot + 1)}
    if g.states:
        fields |= {"recurrent": 1, "blocks": BLOCK_BITS, "outputs": BLOCK_BITS, "snapshot": BLOCK_BITS,
                   "interval": range(ENTRIES), "logged": range(ENTRIES)}
    return data.StructLayout(fields)


class SlotTable(wiring.Component):
    """Memory of one `slot_layout` per slot.

    Reset and `clear` close every slot, one a cycle; `ready` is low for those `slots` cycles, in which nothing may be
    written and what is read means nothing. A read in the cycle of a write to the same slot returns the old entry.

    Members
    -------
    clear: close every slot.
    ready: the table may be used.
    read_slot, entry: `entry` is that of the slot asked for in the previous cycle.
    write_en, write_slot, write_entry: set a slot's entry.
    """

    clear: Signal
    ready: Signal
    read_slot: Signal
    entry: data.View
    write_en: Signal
    write_slot: Signal
    write_entry: data.View

    def __init__(self, g: Geometry) -> None:
        self.g = g
        super().__init__(
            {
                "clear": In(1),
                "ready": Out(1),
                "read_slot": In(range(g.slots)),
                "entry": Out(slot_layout(g)),
                "write_en": In(1),
                "write_slot": In(range(g.slots)),
                "write_entry": In(slot_layout(g)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from `read_slot` to `entry`."""
        return 1

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        memory: Memory = Memory(shape=slot_layout(self.g), depth=self.g.slots, init=[])
        m.submodules.memory = memory
        read, write = memory.read_port(), memory.write_port()
        # The memory itself survives a reset, so that open slots must be closed one by one.
        walk = Signal(range(self.g.slots))
        m.d.comb += [
            read.addr.eq(self.read_slot),
            self.entry.eq(read.data),
            write.addr.eq(self.write_slot),
            write.data.eq(self.write_entry),
            write.en.eq(self.write_en),
        ]
        with m.If(~self.ready):
            m.d.comb += [write.addr.eq(walk), write.data.as_value().eq(0), write.en.eq(1)]
            m.d.sync += [walk.eq(walk + 1), self.ready.eq(walk == self.g.slots - 1)]
        with m.Elif(self.clear):
            m.d.sync += [walk.eq(0), self.ready.eq(0)]
        return m
