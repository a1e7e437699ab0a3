"""Read-out: the products of one state row with the token's query and key, in value units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.dot import Dot
from statecell_hw.array.multiply import Multiplier, mantissa_parts, tree
from statecell_hw.attention.score import saturate
from statecell_hw.layouts import SCALE, QueryLoad
from statecell_hw.recurrent.operands import HALVES, MODE, WIDE_BITS
from statecell_hw.recurrent.pipeline import Handover, Pipeline

VECTORS = 2
"""Vectors that a row meets: lane 0 of the dot unit has q, lane 1 has k."""
ALIGN = 43
"""Right shift of a product, left-shifted by ``_left``, at exponents and state shift 0: 15 + query_bits + _left."""
ROW_FALL_BITS = 7
"""Further right shift of a product: octaves of the factor, and what a logged key's fraction bits ask for."""
ALIGN_BITS = 6
"""A right shift of a product; none of it is left after the largest."""
FINE_BITS = 3
"""Low bits of the alignment, shifted in a cycle of their own."""


def vector_geometry(geometry: Geometry) -> Geometry:
    """The geometry as the dot unit and the writer of a token's vectors see it: no zero points, and a lane for q and for
    k, then for the second half of each.
    """
    return replace(geometry, lanes=HALVES * VECTORS, zero_point=False)


class Readout(wiring.Component):
    """q.S and k.S of a row a cycle, or q and k times a logged key; formulas in docs/numerics.md, 8.3.

    ``codes`` (8 bits) and ``scales`` come with ``valid``, ``falls`` ``fall_lead`` cycles later: right shifts of the
    products with q and k. ``o`` and ``r`` follow ``latency`` cycles after ``valid``: RECUR_BITS with RECUR_FRACTION,
    saturating; interval 1. With ``halves`` a row meets the first or, with ``half``, the second half of the vectors, and
    then the products are those of both halves. ``load``, ``load_ready`` and ``full`` as of :class:`Dot`, the vectors
    times half the factor in the lanes of `vector_geometry`. ``swap``, in the cycle before a head's first row, makes the
    loaded vectors and ``mode`` and ``halved`` those of the rows from then on; both must hold for MIN_ROWS cycles after
    it. Between the rows of two heads are at least ``gap`` idle cycles.
    """

    valid: Signal
    halves: Signal
    half: Signal
    codes: list[Signal]
    scales: Any
    falls: list[Signal]
    load: Any
    load_ready: Signal
    full: Signal
    swap: Signal
    mode: Any
    halved: Signal
    o: Signal
    r: Signal

    def __init__(self, geometry: Geometry, *, multiplier: Multiplier = "native") -> None:
        self.geometry = g = vector_geometry(geometry)
        self.dot = Dot(g, multiplier=multiplier, code_bits=WIDE_BITS, sets=HALVES)
        super().__init__({
            "valid": In(1),
            "halves": In(1),
            "half": In(1),
            "codes": In(signed(WIDE_BITS)).array(g.head_dim),
            "scales": In(SCALE).array(g.groups),
            "falls": In(ROW_FALL_BITS).array(VECTORS),
            "load": In(QueryLoad(g)),
            "load_ready": Out(1),
            "full": Out(HALVES * VECTORS),
            "swap": In(1),
            "mode": In(MODE),
            "halved": In(1),
            "o": Out(signed(formats.RECUR_BITS)),
            "r": Out(signed(formats.RECUR_BITS)),
        })

    @property
    def fall_lead(self) -> int:
        """Cycles from a row to its further shifts."""
        return 2

    @property
    def latency(self) -> int:
        """Cycles from a row to its products: dot, sign, mantissa in two steps, shift in two, saturation, sum of the
        groups, mantissa in two steps, rounding.
        """
        return self.dot.latency + 10

    @property
    def gap(self) -> int:
        """Fewest idle cycles between the rows of two heads."""
        return self.dot.gap

    @property
    def _left(self) -> int:
        """Largest left shift of a product: exponents and state shift at their largest."""
        return ALIGN - 15 - self.geometry.query_bits

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        m.submodules.dot = dot = self.dot
        wiring.connect(m, wiring.flipped(self.load), dot.load)
        m.d.comb += [
            dot.valid.eq(self.valid), dot.upper.eq(self.half), dot.swap.eq(self.swap),
            self.load_ready.eq(dot.load_ready),
            self.full.eq(dot.full), *(a.eq(b) for a, b in zip(dot.codes, self.codes, strict=True)),
        ]
        pipe, head = Pipeline(m, self.valid, self.latency), Handover(m, self.swap)
        at = dot.latency
        which = {0: self.half}
        for stage, after in ((0, at - 2), (at - 2, at + 7), (at + 7, at + 9)):
            which[after] = pipe.carry(stage, which[stage], after, f"half_{after}")
        waits = pipe.carry(0, self.halves & ~self.half, at + 9, "waits")

        def of_vector(stage: int, values: Sequence[Value], name: str) -> Value:
            """What the half of a vector has that a row meets."""
            first, second = (head.at(stage, value, f"{name}_{i}") for i, value in enumerate(values))
            return Mux(which[stage], second, first)

        scales = [pipe.carry(0, scale.as_value(), at - 1, f"scale_{i}") for i, scale in enumerate(self.scales)]
        mantissas = [s[:formats.SCALE_MANTISSA] for s in scales]
        exponents = [s[formats.SCALE_MANTISSA:-1] for s in scales]
        signs = [pipe.hold(at - 1, s[-1], f"sign_{i}") for i, s in enumerate(scales)]
        mantissas = [pipe.carry(at - 1, x, at + 1, f"mantissa_{i}") for i, x in enumerate(mantissas)]
        for vector, result in enumerate((self.o, self.r)):
            parts = []
            fall = pipe.carry(self.fall_lead, self.falls[vector], at - 2, f"fall_{vector}")
            base = of_vector(at - 2, [ALIGN + self.halved - exponent - self.mode.shift
                                      for exponent in dot.query_exponent[vector::VECTORS]], f"base_{vector}")
            base = pipe.hold(at - 2, base + fall, f"aligned_{vector}")
            for group in range(g.groups):
                name = f"{vector}_{group}"
                align = base - exponents[group]
                align = Mux(align > (1 << ALIGN_BITS) - 1, (1 << ALIGN_BITS) - 1, align)[:ALIGN_BITS]
                align = pipe.hold(at - 1, align, f"align_{name}")
                align = pipe.carry(at, align, at + 3, f"align_{name}")
                dotted = dot.dots[vector][group]
                turned = (dotted.as_unsigned() ^ signs[group].replicate(len(dotted))).as_signed() + signs[group]
                product = pipe.hold(at, turned, f"turned_{name}")
                halves = [pipe.hold(at + 1, p, f"half_{name}_{i}")
                          for i, p in enumerate(mantissa_parts(product, mantissas[group]))]
                product = pipe.hold(at + 2, halves[0] + halves[1], f"product_{name}").shift_left(self._left)
                coarse = pipe.hold(at + 3, product >> (align[FINE_BITS:] << FINE_BITS), f"coarse_{name}")
                fine = pipe.hold(at + 3, align[:FINE_BITS], f"fine_{name}")
                shifted = pipe.hold(at + 4, coarse >> fine, f"shifted_{name}")
                parts.append(pipe.hold(at + 5, saturate(shifted, formats.RECUR_PARTIAL_BITS), f"part_{name}"))
            total = pipe.hold(at + 6, tree(list(parts)), f"total_{vector}")
            mantissa = of_vector(at + 7, dot.query_mantissa[vector::VECTORS], f"query_mantissa_{vector}")
            sign = of_vector(at + 9, dot.query_sign[vector::VECTORS], f"query_sign_{vector}")
            parts_of_total = [pipe.hold(at + 7, p, f"half_{vector}_{i}")
                      for i, p in enumerate(mantissa_parts(total, mantissa))]
            m.d.comb += result.eq(self._finish(m, pipe, at + 8, parts_of_total, sign, waits, f"{vector}"))
        return m

    def _finish(self, m: Module, pipe: Pipeline, stage: int, parts: list[Value], sign: Value, waits: Value,
                name: str) -> Any:
        """Sum of the mantissa's parts, then sign, sum with the first half, which ``waits``, rounding and saturation."""
        rounding = 1 << (formats.RECUR_GUARD - 1)
        total = pipe.hold(stage, parts[0] + parts[1], f"scaled_{name}")
        turned = Mux(sign, ~total, total)
        base = Signal(signed(len(total) + 2), name=f"base_{name}", init=rounding)
        with m.If(pipe.valid[stage + 1]):
            m.d.sync += base.eq(rounding + Mux(waits, turned + sign, 0))
        rounded = (turned + base + sign) >> formats.RECUR_GUARD
        return pipe.hold(stage + 1, saturate(rounded, formats.RECUR_BITS), f"result_{name}")
