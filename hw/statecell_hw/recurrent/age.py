"""Ages of logged tokens: octaves that a head's factor has lost since its rows were written."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell_hw.recurrent.operands import LOST_BITS, OCTAVE_BITS


class Age(wiring.Component):
    """What the factors of all slots have lost, and had lost at each logged token; docs/numerics.md, 8.2 and 8.6.

    ``before`` is that of ``slot`` a cycle later, ``lost`` the same with a token's ``octaves`` (combinational). ``adds``
    makes it the slot's, and with ``logs`` that of the slot's log entry ``entry`` as well; ``clears`` makes the slot's 0,
    and ``open_en`` that of ``open_slot``. ``age`` is that of entry ``read_entry`` of ``read_slot`` a cycle later. Reset
    leaves the memories as they are.
    """

    slot: Signal
    octaves: Signal
    before: Signal
    lost: Signal
    adds: Signal
    logs: Signal
    entry: Signal
    clears: Signal
    open_en: Signal
    open_slot: Signal
    read_slot: Signal
    read_entry: Signal
    age: Signal

    def __init__(self, *, slots: int) -> None:
        self.slots = slots
        super().__init__({
            "slot": In(range(slots)),
            "octaves": In(OCTAVE_BITS),
            "before": Out(LOST_BITS),
            "lost": Out(LOST_BITS),
            "adds": In(1),
            "logs": In(1),
            "entry": In(range(formats.LOG_MAX)),
            "clears": In(1),
            "open_en": In(1),
            "open_slot": In(range(slots)),
            "read_slot": In(range(slots)),
            "read_entry": In(range(formats.LOG_MAX)),
            "age": Out(LOST_BITS),
        })

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        totals: Memory = Memory(shape=LOST_BITS, depth=self.slots, init=[])
        ages: Memory = Memory(shape=LOST_BITS, depth=self.slots * formats.LOG_MAX, init=[])
        m.submodules.totals, m.submodules.ages = totals, ages
        total, keep = totals.read_port(), totals.write_port()
        read, write = ages.read_port(), ages.write_port()
        m.d.comb += [
            total.addr.eq(self.slot), self.before.eq(total.data), self.lost.eq(total.data + self.octaves),
            keep.en.eq(self.adds | self.clears | self.open_en), keep.addr.eq(self.slot),
            write.en.eq(self.adds & self.logs), write.addr.eq(Cat(self.entry, self.slot)), write.data.eq(self.lost),
            read.addr.eq(Cat(self.read_entry, self.read_slot)), self.age.eq(read.data),
        ]
        with m.If(self.open_en):
            m.d.comb += keep.addr.eq(self.open_slot)
        with m.Elif(~self.clears):
            m.d.comb += keep.data.eq(self.lost)
        return m
