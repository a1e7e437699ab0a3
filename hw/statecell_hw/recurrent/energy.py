"""Energy of a head: the squared norm of the rows that it writes."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import tree
from statecell_hw.layouts import SCALE
from statecell_hw.recurrent.pipeline import Pipeline

ENERGY_BITS = 57
"""Unsigned sum over the rows of a head."""
SQUARES = tuple((code if code < formats.CODE_MAX + 1 else code - (1 << formats.CODE_BITS)) ** 2
                for code in range(1 << formats.CODE_BITS))
MANTISSAS = tuple(((1 << formats.SCALE_MANTISSA) + m) ** 2 for m in range(1 << formats.SCALE_MANTISSA))
RADIX = 4
"""Terms that one pipeline stage of the adder tree adds up."""


class Energy(wiring.Component):
    """Sum over rows and groups of (sum of high codes squared) (8 + m)^2 << 2 e; docs/numerics.md, 8.1.

    ``high`` and ``scales`` come with ``valid``, ``last`` with the last row of a head, whose ``energy`` is shown with
    ``o_valid`` for one cycle, ``latency`` cycles later. Interval 1. Reset forgets the rows.
    """

    valid: Signal
    last: Signal
    high: list[Signal]
    scales: Any
    o_valid: Signal
    energy: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "valid": In(1),
            "last": In(1),
            "high": In(signed(formats.CODE_BITS)).array(g.head_dim),
            "scales": In(SCALE).array(g.groups),
            "o_valid": Out(1),
            "energy": Out(ENERGY_BITS),
        })

    @property
    def _levels(self) -> int:
        levels, terms = 0, self.geometry.group
        while terms > 1:
            levels, terms = levels + 1, -(-terms // RADIX)
        return levels

    @property
    def latency(self) -> int:
        """Cycles from a row to the sum with it: squares, tree, mantissa, shift in two steps, groups, sum."""
        return 1 + self._levels + 1 + 2 + 1 + 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        pipe = Pipeline(m, self.valid, self.latency)
        parts: list[Any] = []
        for i, scale in enumerate(self.scales):
            terms: list[Value] = [
                pipe.hold(0, Array(SQUARES)[code.as_unsigned()], f"square_{i}_{j}")
                for j, code in enumerate(self.high[i * g.group:(i + 1) * g.group])]
            stage = 1
            while len(terms) > 1:
                terms = [pipe.hold(stage, tree(list(terms[j:j + RADIX])), f"sum_{i}_{j}")
                         for j in range(0, len(terms), RADIX)]
                stage += 1
            code = pipe.carry(0, scale.as_value(), stage, f"scale_{i}")
            total = pipe.hold(stage, terms[0] * Array(MANTISSAS)[code[:formats.SCALE_MANTISSA]], f"weighed_{i}")
            exponent = pipe.hold(stage, code[formats.SCALE_MANTISSA:-1], f"exponent_{i}")
            coarse = pipe.hold(stage + 1, total << (exponent[2:] << 3), f"coarse_{i}")
            fine = pipe.hold(stage + 1, exponent[:2], f"fine_{i}")
            parts.append(pipe.hold(stage + 2, coarse << (fine << 1), f"part_{i}"))
        row = pipe.hold(stage + 3, tree(parts), "row")
        first, last = Signal(init=1), pipe.carry(0, self.last, stage + 4, "last")
        total = Signal(ENERGY_BITS, reset_less=True)
        with m.If(pipe.valid[stage + 4]):
            m.d.sync += [total.eq(Mux(first, 0, total) + row), first.eq(last)]
        m.d.sync += self.o_valid.eq(pipe.valid[stage + 4] & last)
        m.d.comb += self.energy.eq(total)
        return m
