"""Factors that collect a head's decays, and their reciprocals."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.reciprocal import FRACTION_BITS, LEAST, RECIPROCAL, reciprocal
from statecell_hw.array.scale import leading_one
from statecell_hw.recurrent.operands import OCTAVE_BITS
from statecell_hw.recurrent.pipeline import Pipeline

DECAY_BITS = formats.DECAY_FRACTION + 1
"""Unsigned decay, 1.0 included."""
WEIGHT_BITS = formats.DECAY_FRACTION + 1
"""Unsigned multiplier of a vector, DECAY_FRACTION bits of fraction: half a factor, or a reciprocal."""
PART = formats.FACTOR_BITS // 2
"""Low part of a factor, multiplied by itself: a block multiplier takes the part or the rest, not the whole."""
SEARCH_BITS = 32
"""Width of the search for a leading one, a power of two."""
INVERSE_SHIFT = formats.DECAY_FRACTION - formats.INVERSE_BITS
"""Left shift of a reciprocal to a weight."""


def parts(value: Value) -> tuple[Value, Value]:
    """Low PART bits and the rest."""
    return value[:PART], value[PART:]


def half_up(high: Value, low: Value) -> Value:
    """Sum of the products of a value's parts over 2^DECAY_FRACTION, rounded. Combinational."""
    return (high.shift_left(PART) + low + (1 << (formats.DECAY_FRACTION - 1))) >> formats.DECAY_FRACTION


class Factor(wiring.Component):
    """``count`` factors a cycle; formulas in docs/numerics.md, 8.2.

    ``factor`` and ``decay`` come with ``valid``; ``o_valid`` follows ``latency`` cycles later, with the factor
    ``before``, decayed ``after``, ``whole``, the same brought back to 1.0 to 2.0, the ``octaves`` that this took, and
    ``inverse``, the reciprocal of ``whole`` as a weight. ``one``: every decay is 1.0. Interval 1.
    """

    valid: Signal
    factor: list[Signal]
    decay: list[Signal]
    o_valid: Signal
    before: list[Signal]
    after: list[Signal]
    whole: list[Signal]
    octaves: list[Signal]
    inverse: list[Signal]
    one: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.count = count = geometry.word // 2
        super().__init__({
            "valid": In(1),
            "factor": In(formats.FACTOR_BITS).array(count),
            "decay": In(DECAY_BITS).array(count),
            "o_valid": Out(1),
            "before": Out(formats.FACTOR_BITS).array(count),
            "after": Out(formats.FACTOR_BITS).array(count),
            "whole": Out(formats.FACTOR_BITS).array(count),
            "octaves": Out(OCTAVE_BITS).array(count),
            "inverse": Out(WEIGHT_BITS).array(count),
            "one": Out(1),
        })

    @property
    def latency(self) -> int:
        """Cycles from a factor to its results: products, sum, least, leading one, and the reciprocal."""
        return 4 + RECIPROCAL

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        pipe = Pipeline(m, self.valid, self.latency)
        one = pipe.hold(0, Cat(d[-1] for d in self.decay).all(), "one")
        m.d.comb += [self.o_valid.eq(pipe.valid[self.latency]), self.one.eq(pipe.carry(1, one, self.latency, "one"))]
        for i in range(self.count):
            low, high = (pipe.hold(0, self.factor[i] * part, f"{n}_{i}")
                         for n, part in zip(("low", "high"), parts(self.decay[i]), strict=True))
            rounded = pipe.hold(1, half_up(high, low)[:formats.FACTOR_BITS], f"rounded_{i}")
            after = pipe.hold(2, Cat(rounded[0] | ~rounded.any(), rounded[1:]), f"after_{i}")
            shifted, place = leading_one(m, after, SEARCH_BITS)
            whole = pipe.hold(3, shifted[SEARCH_BITS - formats.FACTOR_BITS:], f"whole_{i}")
            octaves = pipe.hold(3, (formats.FACTOR_BITS - 1 - place)[:OCTAVE_BITS], f"octaves_{i}")

            def hold(stage: int, value: Value, name: str, lane: int = i) -> Any:
                return pipe.hold(stage, value, f"{name}_{lane}")

            inverse = reciprocal(m, hold, 4, whole[-1 - FRACTION_BITS:-1], name=f"table_{i}")
            m.d.comb += [
                self.before[i].eq(pipe.carry(0, self.factor[i], self.latency, f"before_{i}")),
                self.after[i].eq(pipe.carry(3, after, self.latency, f"after_{i}")),
                self.whole[i].eq(pipe.carry(4, whole, self.latency, f"whole_{i}")),
                self.octaves[i].eq(pipe.carry(4, octaves, self.latency, f"octaves_{i}")),
                self.inverse[i].eq((inverse + LEAST).shift_left(INVERSE_SHIFT)),
            ]
        return m
