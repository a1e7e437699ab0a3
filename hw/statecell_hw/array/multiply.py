"""Multiplication of a signed number by a short signed code, in the two forms that suit a device."""

from __future__ import annotations

from typing import Literal

from amaranth.hdl import Mux, Value, ValueLike

Multiplier = Literal["native", "gated"]
"""``native`` leaves the multiplier to the tool; ``gated`` adds gated copies, a quarter of the cells on an ECP5."""


def product(number: Value, code: Value, multiplier: Multiplier) -> Value:
    """Number * code, both signed; exact, and the same bits in both forms. Combinational."""
    if multiplier == "native":
        return number * code
    terms: list[ValueLike] = [Mux(code[i], number.shift_left(i), 0) for i in range(len(code) - 1)]
    terms.append(Mux(code[-1], -number.shift_left(len(code) - 1), 0))
    return tree(terms)


def tree(terms: list[ValueLike]) -> Value:
    """Sum of the terms as a balanced tree of adders. Combinational."""
    values = [Value.cast(t) for t in terms]
    while len(values) > 1:
        odd = values[len(values) // 2 * 2:]
        values = [a + b for a, b in zip(values[::2], values[1::2], strict=False)] + odd
    return values[0]
