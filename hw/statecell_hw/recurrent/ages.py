"""Ages of logged tokens: what their head's factor had lost when they were logged."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell_hw.recurrent.operands import LOST_BITS

LATENCY = 1
"""Cycles from a logged key's number to its age."""


class AgeAccess(wiring.Signature):
    """Port for what a factor had lost at each token of the log: with ``reads`` ``age`` is that of ``entry`` of ``slot``
    a cycle later; ``writes`` makes it ``written``.
    """

    def __init__(self, *, slots: int) -> None:
        super().__init__({
            "slot": Out(range(slots)), "entry": Out(range(formats.LOG_MAX)), "reads": Out(1), "age": In(LOST_BITS),
            "writes": Out(1), "written": Out(LOST_BITS),
        })


class Ages(wiring.Component):
    """``age`` is that of token ``index`` in the log of ``slot``, LATENCY cycles later; ``logs`` makes that of token
    ``entries`` of the slot ``lost``. ``access`` reads and writes ages as they are, and goes first. Reset keeps them.
    """

    slot: Signal
    index: Signal
    age: Signal
    logs: Signal
    entries: Signal
    lost: Signal
    access: Any

    def __init__(self, *, slots: int) -> None:
        self.slots = slots
        super().__init__({
            "slot": In(range(slots)),
            "index": In(range(formats.LOG_MAX)),
            "age": Out(LOST_BITS),
            "logs": In(1),
            "entries": In(range(formats.LOG_MAX)),
            "lost": In(LOST_BITS),
            "access": In(AgeAccess(slots=slots)),
        })

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        memory: Memory = Memory(shape=LOST_BITS, depth=self.slots * formats.LOG_MAX, init=[])
        m.submodules.memory = memory
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [
            write.en.eq(self.logs), write.data.eq(self.lost), write.addr.eq(Cat(self.entries, self.slot)),
            read.addr.eq(Cat(self.index, self.slot)), self.age.eq(read.data), self.access.age.eq(read.data),
        ]
        asked = Cat(self.access.entry, self.access.slot)
        with m.If(self.access.reads):
            m.d.comb += read.addr.eq(asked)
        with m.If(self.access.writes):
            m.d.comb += [write.en.eq(1), write.data.eq(self.access.written), write.addr.eq(asked)]
        return m
