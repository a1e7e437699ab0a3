"""Saturation to a range."""

from __future__ import annotations

from amaranth.hdl import Mux, Value


def clamp(value: Value, low: int, high: int) -> Value:
    """``value`` limited to low..high. Combinational."""
    return Mux(value > high, high, Mux(value < low, low, value))
