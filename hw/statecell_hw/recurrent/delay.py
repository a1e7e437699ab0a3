"""Delay line: what a row needs later waits in a memory."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out


class DelayLine(wiring.Component):
    """``o`` is the ``i`` of ``latency`` cycles before, at least 2; interval 1. Not reset: before that it is anything.

    A memory of latency - 1 words, written and read at one place that moves on each cycle.
    """

    i: Signal
    o: Signal

    def __init__(self, width: int, latency: int) -> None:
        self.latency = latency
        super().__init__({"i": In(width), "o": Out(width)})

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        depth = self.latency - 1
        memory: Memory = Memory(shape=len(self.i), depth=depth, init=[])
        m.submodules.memory = memory
        write, read = memory.write_port(), memory.read_port()
        place = Signal(range(max(2, depth)))
        m.d.sync += place.eq(Mux(place == depth - 1, 0, place + 1))
        m.d.comb += [
            write.en.eq(1), write.addr.eq(place), write.data.eq(self.i), read.addr.eq(place), self.o.eq(read.data),
        ]
        return m


def delayed(m: Module, value: Value, latency: int, name: str) -> Value:
    """What ``value`` was ``latency`` cycles before, by a line of its own in ``m``."""
    m.submodules[f"{name}_line"] = line = DelayLine(len(value), latency)
    m.d.comb += line.i.eq(value)
    return line.o
