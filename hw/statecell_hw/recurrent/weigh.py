"""Vectors times factors or reciprocals, a word a cycle."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.recurrent.factor import WEIGHT_BITS, half_up, parts
from statecell_hw.recurrent.pipeline import Pipeline


class Weigh(wiring.Component):
    """o = i * weight in each element, rounded; docs/numerics.md, 8.2. Vectors of 16 bits stay so. ``o_valid`` comes
    ``latency`` cycles after ``valid``; interval 1.
    """

    valid: Signal
    i: list[Signal]
    weight: list[Signal]
    o_valid: Signal
    o: list[Signal]

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "valid": In(1),
            "i": In(signed(formats.VECTOR_BITS)).array(g.word),
            "weight": In(WEIGHT_BITS).array(g.word),
            "o_valid": Out(1),
            "o": Out(signed(formats.VECTOR_BITS)).array(g.word),
        })

    @property
    def latency(self) -> int:
        """Cycles from a word to its product: products of the weight's parts, sum."""
        return 2

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        pipe = Pipeline(m, self.valid, self.latency)
        m.d.comb += self.o_valid.eq(pipe.valid[self.latency])
        for p, (i, weight, o) in enumerate(zip(self.i, self.weight, self.o, strict=True)):
            low, high = (pipe.hold(0, i * part, f"{n}_{p}")
                         for n, part in zip(("low", "high"), parts(weight), strict=True))
            m.d.comb += o.eq(pipe.hold(1, half_up(high, low)[:formats.VECTOR_BITS].as_signed(), f"o_{p}"))
        return m
