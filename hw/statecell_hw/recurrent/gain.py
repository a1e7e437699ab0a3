"""Gain: from a channel's d and two scales to the integer that multiplies the key's codes."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import mantissa_parts
from statecell_hw.layouts import SCALE
from statecell_hw.recurrent.error import PART, split_product
from statecell_hw.recurrent.operands import EXPONENT_BITS, FALL_BITS, HALVES, OCTAVE_BITS
from statecell_hw.recurrent.pipeline import Handover, Pipeline

TOP_EXPONENT = formats.SCALE_MAGNITUDE_MAX >> formats.SCALE_MANTISSA
PLACE = 26
"""Right shift of a gain at exponents and state shift 0: what the formats' fraction bits add up to."""
A_BITS = formats.RECUR_BITS + formats.RECIPROCAL_BITS + 2
"""Signed width of a = d * key mantissa * reciprocal of the row's mantissa."""
RAISED_BITS = 5
"""Octaves by which a working scale lies above the stored one."""
WORKING_BITS = 6
"""Unsigned exponent of a working scale."""


def leading(value: Value, first: int, last: int, known: Value | None = None) -> tuple[Value, Value]:
    """Steps ``first`` >= ... >= ``last`` (powers of two) of the search for a value's leading one, whose bits above the
    reach of the steps are 0: (the value without what the steps have passed, bits of the place found so far). The place
    after step 1 is floor(log2(value)), 0 for 0. Combinational.
    """
    place = known if known is not None else Const(0, 0)
    step = first
    while step >= last:
        above = value[step:].any()
        value, place = Mux(above, value[step:], value[:step]), Cat(above, place)
        step >>= 1
    return value, place


def least(value: Value, limit: int) -> Value:
    """The value, or the limit if that is less. Combinational."""
    return Mux(value > limit, limit, value)


class Gain(wiring.Component):
    """One row's gains, one a scale group; formulas in docs/numerics.md, 8.4, for a single token.

    ``scales`` of the row come with ``valid``, ``d`` ``lead`` cycles later. ``raised``, the working scale's ``exponent``
    and ``fall``, the right shift of stored codes without the lanes' own, at most UPDATE_BITS, follow ``raised_latency``
    cycles after ``valid``; ``gain`` (GAIN_BITS) ``latency`` cycles; interval 1. The row meets the first or, with
    ``half``, the second half of the key. The key's scales ``key``, ``octaves`` and ``shift`` are those of the rows from
    the cycle after ``swap`` on and must hold for MIN_ROWS cycles.
    """

    valid: Signal
    half: Signal
    scales: Any
    d: Signal
    swap: Signal
    key: Any
    octaves: Signal
    shift: Signal
    raised: list[Signal]
    exponent: list[Signal]
    fall: list[Signal]
    gain: list[Signal]

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "valid": In(1),
            "half": In(1),
            "scales": In(SCALE).array(g.groups),
            "d": In(signed(formats.RECUR_BITS)),
            "swap": In(1),
            "key": In(SCALE).array(HALVES, g.groups),
            "octaves": In(OCTAVE_BITS),
            "shift": In(formats.STATE_SHIFT_MAX.bit_length()),
            "raised": Out(1).array(g.groups),
            "exponent": Out(WORKING_BITS).array(g.groups),
            "fall": Out(FALL_BITS).array(g.groups),
            "gain": Out(signed(formats.GAIN_BITS)).array(g.groups),
        })

    @property
    def lead(self) -> int:
        """Cycles from the row's scales to its d: reciprocal, key's mantissa in two steps, sign."""
        return 4

    @property
    def raised_latency(self) -> int:
        """Cycles from the scales to the working exponent: products, sum, magnitude, leading one in two steps, octaves,
        exponent after d.
        """
        return self.lead + 7

    @property
    def latency(self) -> int:
        """Cycles from the scales to the gains: shift in two steps and rounding, while the exponent is worked out."""
        return self.lead + 9

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        pipe, head = Pipeline(m, self.valid, self.latency), Handover(m, self.swap)
        for group in range(self.geometry.groups):
            self._group(m, pipe, head, group)
        return m

    def _group(self, m: Module, pipe: Pipeline, head: Handover, i: int) -> None:
        scale, lead = self.scales[i], self.lead
        half: list[Value] = [self.half]
        for stage in range(3):
            half.append(pipe.hold(stage, half[-1], f"which_{i}"))

        def of_key(stage: int, field: str) -> Value:
            first, second = (head.at(stage, key[i][field], f"key_{field}_{i}_{n}") for n, key in enumerate(self.key))
            return Mux(half[stage], second, first)

        # place = exponent + shift + PLACE; a gain's right shift less 13 is the larger of two sums, so it needs no
        # second subtraction: raised = max(0, bits - limit), right - 1 = place - key exponent + raised - 1
        octaves, shift = self.octaves, head.at(1, self.shift, f"shift_{i}")
        lower = pipe.hold(0, Mux(scale.exponent > octaves, scale.exponent - octaves, 0)[:EXPONENT_BITS], f"lower_{i}")
        down = pipe.hold(0, Mux(octaves > scale.exponent, octaves - scale.exponent, 0)[:OCTAVE_BITS], f"down_{i}")
        key_exponent = of_key(2, "exponent")
        place = pipe.hold(1, lower + shift, f"place_{i}")
        limit = pipe.hold(2, place + (PLACE + 12) - key_exponent, f"limit_{i}")
        reciprocal = pipe.hold(0, Array(formats.SCALE_RECIPROCALS)[scale.mantissa], f"reciprocal_{i}")
        turned = pipe.carry(0, scale.sign, 3, f"turned_{i}") ^ of_key(3, "sign")
        halves = [pipe.hold(1, p, f"half_{i}_{n}") for n, p in enumerate(
            mantissa_parts(reciprocal, of_key(1, "mantissa")))]
        factor = pipe.hold(2, halves[0] + halves[1], f"size_{i}")
        factor = pipe.hold(3, Mux(turned, -factor, factor), f"factor_{i}")

        high, low = split_product(pipe, lead, self.d, factor, f"product_{i}")
        a = pipe.hold(lead + 1, (high.shift_left(PART) + low)[:A_BITS].as_signed(), f"a_{i}")
        size = pipe.hold(lead + 2, Mux(a[-1], -a, a)[:A_BITS - 1], f"magnitude_{i}")
        top = 1 << (ceil_log2(len(size)) - 1)
        rest, place_high = leading(size, top, 8)
        rest, place_high = pipe.hold(lead + 3, rest, f"rest_{i}"), pipe.hold(lead + 3, place_high, f"log_{i}")
        nothing = pipe.carry(lead + 3, ~size.any(), lead + 5, f"nothing_{i}")
        _, log = leading(rest, 4, 1, place_high)
        log = pipe.hold(lead + 4, log, f"log_{i}")
        limit = pipe.carry(3, limit, lead + 5, f"limit_{i}")
        bits = Mux(nothing, 0, log + 1)
        over = bits > limit
        raised = pipe.hold(lead + 5, Mux(over, bits - limit, 0)[:RAISED_BITS], f"raised_{i}")
        right = pipe.hold(lead + 5, (Mux(over, bits, limit) - 13)[:6], f"right_{i}")

        lower = pipe.carry(1, lower, lead + 6, f"lower_{i}")
        down = pipe.carry(1, down, lead + 6, f"down_{i}")
        fall = least(raised + down, formats.UPDATE_BITS)
        m.d.comb += [
            self.exponent[i].eq(pipe.hold(lead + 6, lower + raised, f"exponent_{i}")),
            self.raised[i].eq(pipe.hold(lead + 6, raised.any(), f"is_raised_{i}")),
            self.fall[i].eq(pipe.hold(lead + 6, fall, f"fall_{i}")),
        ]
        a = pipe.carry(lead + 2, a, lead + 6, f"a_{i}")
        coarse = pipe.hold(lead + 6, a >> (right[3:6] << 3), f"coarse_{i}")
        fine = pipe.hold(lead + 6, right[:3], f"fine_{i}")
        shifted = pipe.hold(lead + 7, (coarse >> fine)[:formats.GAIN_BITS + 1].as_signed(), f"shifted_{i}")
        m.d.comb += self.gain[i].eq(pipe.hold(lead + 8, ((shifted + 1) >> 1)[:formats.GAIN_BITS].as_signed(),
                                              f"gain_{i}"))
