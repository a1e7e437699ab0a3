"""Error: what a token adds to a value channel, and the channel's output."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell_hw.attention.score import saturate
from statecell_hw.recurrent.operands import HEAD
from statecell_hw.recurrent.pipeline import Handover, Pipeline

PART = formats.RECUR_BITS // 2
"""Low part of a 24-bit number, multiplied by itself: a block multiplier takes the part or the rest, not the whole."""


def split_product(pipe: Pipeline, stage: int, number: Value, factor: Value, name: str) -> list[Any]:
    """Registers of the two products of a number's low PART and of the rest, which lies PART bits higher."""
    low, high = number[:PART], number[PART:].as_signed()
    return [pipe.hold(stage, high * factor, f"{name}_high"), pipe.hold(stage, low * factor, f"{name}_low")]


class Error(wiring.Component):
    """d = beta (v - r), or beta v without the delta rule, and o; formulas in docs/numerics.md, 8.3.

    ``v``, ``r`` and ``o_rows`` come with ``valid``; ``d`` follows ``d_latency`` cycles later and ``o`` ``latency``, all
    of RECUR_BITS with RECUR_FRACTION; interval 1. ``head`` is that of the rows from the cycle after ``swap`` on and
    must hold for MIN_ROWS cycles.
    """

    valid: Signal
    v: Signal
    r: Signal
    o_rows: Signal
    swap: Signal
    head: Any
    d: Signal
    o: Signal

    def __init__(self) -> None:
        super().__init__({
            "valid": In(1),
            "v": In(signed(formats.VECTOR_BITS)),
            "r": In(signed(formats.RECUR_BITS)),
            "o_rows": In(signed(formats.RECUR_BITS)),
            "swap": In(1),
            "head": In(HEAD),
            "d": Out(signed(formats.RECUR_BITS)),
            "o": Out(signed(formats.RECUR_BITS)),
        })

    @property
    def d_latency(self) -> int:
        """Cycles from a row to its d: difference, products, sum, rounding."""
        return 4

    @property
    def latency(self) -> int:
        """Cycles from a row to its o: products, sum and sum of the outputs after d."""
        return self.d_latency + 3

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        pipe, head = Pipeline(m, self.valid, self.latency), Handover(m, self.swap)
        whole = self.v.shift_left(formats.RECUR_FRACTION)
        difference = saturate(whole - self.r, formats.RECUR_BITS)
        error = pipe.hold(0, Mux(self.head.mode.delta, difference, whole), "error")
        beta = head.at(1, self.head.beta, "beta")
        high, low = split_product(pipe, 1, error, beta, "strength")
        total = pipe.hold(2, high.shift_left(PART) + low + (1 << (formats.BETA_FRACTION - 1)), "strength")
        d = pipe.hold(3, saturate(total >> formats.BETA_FRACTION, formats.RECUR_BITS), "d")
        mix = head.at(self.d_latency, self.head.mix, "mix")
        high, low = split_product(pipe, self.d_latency, d, mix, "mixed")
        mixed = pipe.hold(self.d_latency + 1, high.shift_left(PART) + low + (1 << (formats.MIX_FRACTION - 1)), "mixed")
        rows = pipe.carry(0, self.o_rows, self.d_latency + 2, "o_rows")
        o = saturate(rows + (mixed >> formats.MIX_FRACTION), formats.RECUR_BITS)
        m.d.comb += [self.d.eq(d), self.o.eq(pipe.hold(self.d_latency + 2, o, "o"))]
        return m
