"""Multiplication of a signed number by a short signed code, in the forms that suit a device."""

from __future__ import annotations

from typing import Literal

from amaranth.hdl import Cat, Const, Mux, Value, ValueLike

Form = Literal["native", "gated", "block"]
"""``native`` leaves the multiplier to the tool, in one register level, which simulates fastest; ``gated`` adds gated
copies of the number, one adder between two registers; ``block`` has a hardware multiplier alone between two registers,
in as many levels as ``gated``."""
Multiplier = Literal["native", "gated", "mixed"]
"""Forms of a tile: all products ``native``, all ``gated``, or ``mixed``: ``gated``, but ``block`` for the products of
keys with every query but the last, for FPGAs that have as many multipliers to spare and little logic."""


def key_form(multiplier: Multiplier, lane: int, lanes: int) -> Form:
    """Form of the products of keys with the query of ``lane``."""
    if multiplier == "mixed":
        return "block" if lane < lanes - 1 else "gated"
    return multiplier


def weight_form(multiplier: Multiplier) -> Form:
    """Form of the products of weights with value codes; weights are too wide for the multipliers of FPGAs."""
    return "gated" if multiplier == "mixed" else multiplier


def stages(code_bits: int, form: Form) -> int:
    """Register levels of a product: one, or one for each bit of the code after the first."""
    return 1 if form == "native" else code_bits - 1


def partial(stage: int, number: Value, code: Value, before: Value | None, form: Form) -> Value:
    """What register level ``stage`` of number * code takes, both signed; the last level holds the exact product, the
    same bits in every form. Combinational.

    ``before`` is the level before (None in the first); number and code are those that belong to it, so a caller delays
    them by ``stage`` cycles.
    """
    if form == "native":
        return number * code
    if form == "block":
        if before is None:
            return code
        return number * before if stage == 1 else before
    zero = Const(0, number.shape())
    if before is None:
        before = Mux(code[0], number, zero).as_signed()
    bit = stage + 1
    gated = Mux(code[bit], number, zero).as_signed()
    upper = before[bit:].as_signed()
    total = upper - gated if bit == len(code) - 1 else upper + gated
    return Cat(before[:bit], total)[:len(number) + bit + 1].as_signed()


def mantissa_parts(value: Value, mantissa: Value) -> tuple[Value, Value]:
    """Two sums of two terms each that add up to value * (8 + mantissa); ``mantissa`` has 3 bits. Combinational: a sum
    fits between two registers where the product would not.
    """
    zero = Const(0, value.shape())

    def gate(bit: int) -> Value:
        gated = Mux(mantissa[bit], value, zero)
        return gated.as_signed() if value.shape().signed else gated

    return (value.shift_left(1) + gate(2)).shift_left(2), gate(1).shift_left(1) + gate(0)


def tree(terms: list[ValueLike]) -> Value:
    """Sum of the terms as a balanced tree of adders. Combinational."""
    values = [Value.cast(t) for t in terms]
    while len(values) > 1:
        odd = values[len(values) // 2 * 2:]
        values = [a + b for a, b in zip(values[::2], values[1::2], strict=False)] + odd
    return values[0]
