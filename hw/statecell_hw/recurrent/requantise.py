"""Re-quantisation: updated lanes rounded to codes at the chosen scale."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import clamp
from statecell_hw.attention.score import saturate
from statecell_hw.layouts import SCALE
from statecell_hw.recurrent.gain import WORKING_BITS
from statecell_hw.recurrent.noise import lane_noise
from statecell_hw.recurrent.operands import MODE, WIDE_BITS
from statecell_hw.recurrent.pipeline import Handover, Pipeline

NEAREST = formats.RATIO_FRACTION + formats.UPDATE_FRACTION - formats.CODE_BITS
"""Right shift of lane * ratio to an 8-bit code at an unchanged exponent."""
MOST = 30
"""Largest right shift: nothing is left of the product's 27 bits."""
HALF = 1 << (formats.NOISE_BITS - 1)
FINE_BITS = 2
"""Low bits of the shift, made in a cycle of their own."""


class Requantise(wiring.Component):
    """Codes of a row at its new scale; formulas in docs/numerics.md, 8.5.

    The working scale (``mantissa``, ``sign``, ``exponent``) and the new ``scales`` come with ``valid``, ``lanes``
    ``lane_lead`` cycles later, the row's ``noise`` word ``noise_lead``. ``high`` and ``low`` nibbles follow ``latency``
    cycles after ``valid``: 16 high + low is the 8-bit code, or ``high`` alone that of one plane (``low`` 0).
    Interval 1. ``mode`` is that of the rows from the cycle after ``swap`` on and must hold for MIN_ROWS cycles.
    """

    valid: Signal
    mantissa: list[Signal]
    sign: list[Signal]
    exponent: list[Signal]
    scales: Any
    lanes: list[Signal]
    noise: Signal
    swap: Signal
    mode: Any
    high: list[Signal]
    low: list[Signal]

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "valid": In(1),
            "mantissa": In(formats.SCALE_MANTISSA).array(g.groups),
            "sign": In(1).array(g.groups),
            "exponent": In(WORKING_BITS).array(g.groups),
            "scales": In(SCALE).array(g.groups),
            "lanes": In(signed(formats.UPDATE_BITS)).array(g.head_dim),
            "noise": In(formats.LFSR_BITS),
            "swap": In(1),
            "mode": In(MODE),
            "high": Out(signed(formats.CODE_BITS)).array(g.head_dim),
            "low": Out(signed(formats.CODE_BITS)).array(g.head_dim),
        })

    @property
    def lane_lead(self) -> int:
        """Cycles from the scales to the lanes: ratio and distance, their sign and limits."""
        return 2

    @property
    def noise_lead(self) -> int:
        """Cycles from the scales to the noise: product and shift in two steps after the lanes."""
        return self.lane_lead + 3

    @property
    def latency(self) -> int:
        """Cycles from the scales to the codes: rounding and nibbles after the noise."""
        return self.noise_lead + 2

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        pipe, head = Pipeline(m, self.valid, self.latency), Handover(m, self.swap)
        at = self.lane_lead
        wide = head.at(1, self.mode.wide, "wide")
        factors, rights = [], []
        for i in range(g.groups):
            ratio = pipe.hold(0, Array(Array(row) for row in formats.SCALE_RATIOS)[self.mantissa[i]][
                self.scales[i].mantissa], f"ratio_{i}")
            turned = pipe.hold(0, self.sign[i] ^ self.scales[i].sign, f"turned_{i}")
            apart = pipe.hold(0, self.scales[i].exponent - self.exponent[i], f"apart_{i}")
            factors.append(pipe.hold(1, Mux(turned, -ratio, ratio), f"factor_{i}"))
            right = Mux(apart < 1 - NEAREST, 1, apart + NEAREST).as_unsigned() + Mux(wide, 0, formats.CODE_BITS)
            right = pipe.hold(1, Mux(right > MOST, MOST, right)[:MOST.bit_length()], f"right_{i}")
            rights.append(pipe.carry(at, right, at + 1, f"right_{i}"))
        narrow = head.at(at + 4, ~self.mode.wide, "narrow")
        limits = head.at(at + 3, self.mode.wide, "wide_limits")
        stochastic = head.at(at + 3, self.mode.stochastic, "stochastic")
        fine = [pipe.hold(at + 1, right[:FINE_BITS], f"fine_{i}") for i, right in enumerate(rights)]
        bits = WIDE_BITS + formats.NOISE_BITS + 1
        least, most = (Mux(limits, a, b) for a, b in (
            (formats.WIDE_MIN, formats.CODE_MIN), (formats.WIDE_MAX, formats.CODE_MAX)))
        for lane in range(g.head_dim):
            group = lane // g.group
            product = pipe.hold(at, self.lanes[lane] * factors[group], f"product_{lane}")
            # NOISE_BITS more than the code: half of its unit, or the noise, is added to them
            long = product.shift_left(formats.NOISE_BITS)
            coarse = pipe.hold(at + 1, long >> (rights[group][FINE_BITS:] << FINE_BITS), f"coarse_{lane}")
            shifted = pipe.hold(at + 2, saturate(coarse >> fine[group], bits), f"shifted_{lane}")
            spread = Mux(stochastic, lane_noise(self.noise, lane), HALF)
            whole = (shifted + spread) >> formats.NOISE_BITS
            code = pipe.hold(at + 3, clamp(m, whole, least, most)[:WIDE_BITS].as_signed(), f"code_{lane}")
            above = (code + (1 << (formats.CODE_BITS - 1))) >> formats.CODE_BITS
            high = Mux(narrow, code[:formats.CODE_BITS], above[:formats.CODE_BITS])
            rest = Mux(narrow, 0, code[:formats.CODE_BITS])
            m.d.comb += [
                self.high[lane].eq(pipe.hold(at + 4, high, f"high_{lane}")),
                self.low[lane].eq(pipe.hold(at + 4, rest, f"low_{lane}")),
            ]
        return m
