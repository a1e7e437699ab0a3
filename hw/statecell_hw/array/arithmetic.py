"""Arithmetic whose operands are bound to signals so that they exist once, and pipeline registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, ValueLike

UNREAD = "unread_when_idle"
"""Attribute of registers whose value is read only in the cycle after one in which their enable was high: it saves a
simulator work, and an FPGA, which has fewer enables than registers, may leave it out."""


def shared(m: Module, value: Value, name: str) -> Signal:
    """A signal that carries ``value``."""
    signal = Signal(value.shape(), name=name)
    m.d.comb += signal.eq(value)
    return signal


def hold(m: Module, enable: ValueLike, values: Sequence[ValueLike], name: str) -> list[Any]:
    """Registers of a pipeline: they take the values in a cycle with ``enable``, and are read only in the next."""
    held = [Signal(Value.cast(v).shape(), name=f"{name}_{i}", reset_less=True, attrs={UNREAD: 1})
            for i, v in enumerate(values)]
    with m.If(enable):
        m.d.sync += [h.eq(v) for h, v in zip(held, values, strict=True)]
    return held


def clamp(m: Module, value: Value, low: ValueLike, high: ValueLike) -> Value:
    """``value`` limited to low..high."""
    value = shared(m, value, "unlimited")
    return Mux(value > high, high, Mux(value < low, low, value))


def larger(m: Module, a: Value, b: Value) -> Signal:
    """The larger of two values."""
    return shared(m, Mux(a > b, a, b), "larger")


def choose(bits: list[Value], options: list[Value]) -> Value:
    """The option with the number of these bits, from the lowest up. Combinational."""
    if not bits:
        return options[0]
    half = len(options) // 2
    return Mux(bits[-1], choose(bits[:-1], options[half:]), choose(bits[:-1], options[:half]))
