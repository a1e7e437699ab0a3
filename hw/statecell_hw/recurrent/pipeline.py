"""Registers of blocks whose rows follow each other without a bubble while the heads change."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, ValueLike

MIN_ROWS = 16
"""Fewest cycles from the first row of a head to that of the next."""


class Pipeline:
    """Stages of a fixed-latency block. ``valid[s]`` is high ``s`` cycles after a row's ``valid``."""

    def __init__(self, m: Module, valid: Value, stages: int) -> None:
        self._m = m
        self.valid: list[Value] = [valid]
        for stage in range(1, stages + 1):
            after = Signal(name=f"valid_{stage}")
            m.d.sync += after.eq(self.valid[-1])
            self.valid.append(after)

    def hold(self, stage: int, value: ValueLike, name: str) -> Any:
        """Register that takes a row's value of ``stage`` and shows it in the next."""
        held = Signal(Value.cast(value).shape(), name=f"{name}_{stage + 1}", reset_less=True)
        with self._m.If(self.valid[stage]):
            self._m.d.sync += held.eq(value)
        return held

    def carry(self, stage: int, value: ValueLike, until: int, name: str) -> Any:
        """The value of ``stage`` at stage ``until``."""
        for at in range(stage, until):
            value = self.hold(at, value, name)
        return value


def late(m: Module, halves: Value, value: Value, name: str) -> Value:
    """The value, a cycle later where ``halves``: what is added to the first half of a channel needs the second. A cycle
    without either lies between values with and without.
    """
    was, held = Signal(name=f"{name}_was"), Signal(len(value), name=f"{name}_held")
    m.d.sync += [was.eq(halves), held.eq(value)]
    return Mux(halves | was, held, value)


class Handover:
    """Operands of a head, handed on to the stages that use them as its first row passes.

    ``swap`` is high in the cycle before a head's first row is at stage 0; swaps are MIN_ROWS cycles apart or more.
    """

    def __init__(self, m: Module, swap: Value) -> None:
        self._m = m
        self._strobes: list[Value] = [swap]

    def strobe(self, stage: int) -> Value:
        """High in the cycle before a head's first row is at ``stage``."""
        while len(self._strobes) <= stage:
            after = Signal(name=f"swap_{len(self._strobes)}")
            self._m.d.sync += after.eq(self._strobes[-1])
            self._strobes.append(after)
        return self._strobes[stage]

    def at(self, stage: int, value: ValueLike, name: str, *, start: int = 0) -> Any:
        """Operand at ``stage``, from ``value`` that is right from stage ``start`` on, for MIN_ROWS cycles."""
        while start < stage:
            start = min(stage, start + MIN_ROWS)
            held = Signal(Value.cast(value).shape(), name=f"{name}_at_{start}", reset_less=True)
            with self._m.If(self.strobe(start)):
                self._m.d.sync += held.eq(value)
            value = held
        return value
