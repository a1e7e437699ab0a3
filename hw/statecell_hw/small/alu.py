"""Arithmetic of the small device's machine: one operation on accumulator and operand."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell_hw.small.isa import FACTOR_BITS, OP_BITS, WORD_BITS, Op

SHIFT_BITS = (WORD_BITS - 1).bit_length()


class Alu(wiring.Component):
    """`result` of the operation `op` on the accumulator `a` and the operand `b`, all of WORD_BITS.

    LD, ADD, SUB, AND, MIN, MAX and ASR (by the low SHIFT_BITS of `b`) are combinational. MUL, by the low FACTOR_BITS of
    `b`, modulo 2^WORD_BITS, has the product of the operands `latency` cycles before. TAB gives `table`. One multiplier
    makes the low product, another the high one, each with registers before and behind it.
    """

    op: Signal
    a: Signal
    b: Signal
    table: Signal
    result: Signal

    def __init__(self) -> None:
        word = signed(WORD_BITS)
        super().__init__({"op": In(OP_BITS), "a": In(word), "b": In(word), "table": In(word), "result": Out(word)})

    @property
    def latency(self) -> int:
        """Cycles from the operands of MUL to its result."""
        return 2

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        a, b = self.a, self.b
        minus = Signal()
        m.d.comb += minus.eq(self.op != Op.ADD)
        # one carry chain for sums, differences and comparisons
        total, less = Signal(signed(WORD_BITS + 1)), Signal()
        inverted = Signal(signed(WORD_BITS + 1))
        m.d.comb += [
            inverted.eq(Mux(minus, ~b, b)),
            total.eq((Cat(minus, a, a[-1]).as_signed() + Cat(minus, inverted).as_signed())[1:].as_signed()),
            less.eq(total[-1]),
        ]
        # low and high half of the accumulator, both as signed factors: what is taken from the low half when its sign
        # is set is given to the high one
        low, high = Signal(signed(WORD_BITS), reset_less=True), Signal(signed(WORD_BITS), reset_less=True)
        for half, result in ((a[:FACTOR_BITS], low), (a[FACTOR_BITS:] + a[FACTOR_BITS - 1], high)):
            # registers of their own, which go into the multiplier's block
            factor, other = (Signal(signed(FACTOR_BITS), reset_less=True) for _ in range(2))
            m.d.sync += [factor.eq(half), other.eq(b[:FACTOR_BITS]), result.eq(factor * other)]
        product = Cat(low[:FACTOR_BITS], low[FACTOR_BITS:] + high[: WORD_BITS - FACTOR_BITS])
        with m.If(self.op == Op.TAB):
            m.d.comb += self.result.eq(self.table)
        with m.Else(), m.Switch(self.op[:3]):
            with m.Case(Op.LD):
                m.d.comb += self.result.eq(b)
            with m.Case(Op.ADD, Op.SUB):
                m.d.comb += self.result.eq(total)
            with m.Case(Op.AND):
                m.d.comb += self.result.eq(a & b)
            with m.Case(Op.MIN):
                m.d.comb += self.result.eq(Mux(less, a, b))
            with m.Case(Op.MAX):
                m.d.comb += self.result.eq(Mux(less, b, a))
            with m.Case(Op.ASR):
                m.d.comb += self.result.eq(a >> b[:SHIFT_BITS])
            with m.Case(Op.MUL):
                m.d.comb += self.result.eq(product)
        return m
