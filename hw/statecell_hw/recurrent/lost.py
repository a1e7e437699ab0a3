"""Octaves that the slots' factors have lost since their rows were written."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell_hw.recurrent.operands import LOST_BITS, OCTAVE_BITS


class Lost(wiring.Component):
    """What the factors of all slots have lost; docs/numerics.md, 8.2.

    ``before`` is that of ``slot`` a cycle later, ``lost`` the same with a token's ``octaves`` (combinational). ``adds``
    makes it the slot's, ``clears`` makes that 0, and ``open_en`` that of ``open_slot`` ``open_lost``. Reset leaves the
    memory as it is.
    """

    slot: Signal
    octaves: Signal
    before: Signal
    lost: Signal
    adds: Signal
    clears: Signal
    open_en: Signal
    open_slot: Signal
    open_lost: Signal

    def __init__(self, *, slots: int) -> None:
        self.slots = slots
        super().__init__({
            "slot": In(range(slots)),
            "octaves": In(OCTAVE_BITS),
            "before": Out(LOST_BITS),
            "lost": Out(LOST_BITS),
            "adds": In(1),
            "clears": In(1),
            "open_en": In(1),
            "open_slot": In(range(slots)),
            "open_lost": In(LOST_BITS),
        })

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        totals: Memory = Memory(shape=LOST_BITS, depth=self.slots, init=[])
        m.submodules.totals = totals
        read, write = totals.read_port(), totals.write_port()
        m.d.comb += [
            read.addr.eq(self.slot), self.before.eq(read.data), self.lost.eq(read.data + self.octaves),
            write.en.eq(self.adds | self.clears | self.open_en), write.addr.eq(self.slot),
        ]
        with m.If(self.open_en):
            m.d.comb += [write.addr.eq(self.open_slot), write.data.eq(self.open_lost)]
        with m.Elif(~self.clears):
            m.d.comb += write.data.eq(self.lost)
        return m
