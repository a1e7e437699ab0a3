"""Combinational arithmetic whose operands are used more than once, each bound to a signal so that it exists once."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value, ValueLike


def shared(m: Module, value: Value, name: str) -> Signal:
    """A signal that carries ``value``."""
    signal = Signal(value.shape(), name=name)
    m.d.comb += signal.eq(value)
    return signal


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
