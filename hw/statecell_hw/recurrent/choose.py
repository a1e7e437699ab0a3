"""Choice of the scale that an updated row is stored with."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import larger
from statecell_hw.array.multiply import mantissa_parts
from statecell_hw.array.scale import leading_one, least_scale
from statecell_hw.layouts import SCALE
from statecell_hw.recurrent.gain import TOP_EXPONENT, WORKING_BITS
from statecell_hw.recurrent.operands import EXPONENT_BITS, MODE
from statecell_hw.recurrent.pipeline import Handover, Pipeline

LEVELS = 2
"""Levels of the comparison tree between two registers."""
MAGNITUDE_BITS = 32
"""Width of the search for a leading one: a power of two above the bits of a magnitude times a mantissa."""


class Choose(wiring.Component):
    """One scale a group: held, fresh or supplied; formulas in docs/numerics.md, 8.5.

    ``lanes`` come with ``valid``, with the working scale (``mantissa``, ``sign``, ``exponent``), whether the update has
    ``raised`` it, and the host's scale, ``supplied``. ``scales`` follow ``latency`` cycles later, ``renewed`` with them
    for groups that took a new scale where it is held; interval 1. ``mode`` is that of the rows from the cycle after
    ``swap`` on and must hold for MIN_ROWS cycles.
    """

    valid: Signal
    lanes: list[Signal]
    mantissa: list[Signal]
    sign: list[Signal]
    exponent: list[Signal]
    raised: list[Signal]
    supplied: Any
    swap: Signal
    mode: Any
    scales: Any
    renewed: list[Signal]

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "valid": In(1),
            "lanes": In(signed(formats.UPDATE_BITS)).array(g.head_dim),
            "mantissa": In(formats.SCALE_MANTISSA).array(g.groups),
            "sign": In(1).array(g.groups),
            "exponent": In(WORKING_BITS).array(g.groups),
            "raised": In(1).array(g.groups),
            "supplied": In(SCALE).array(g.groups),
            "swap": In(1),
            "mode": In(MODE),
            "scales": Out(SCALE).array(g.groups),
            "renewed": Out(1).array(g.groups),
        })

    @property
    def tree(self) -> int:
        """Registers of the comparison tree."""
        return -(-(self.geometry.group.bit_length() - 1) // LEVELS)

    @property
    def latency(self) -> int:
        """Cycles from the lanes to their scales: tree, extremes, largest, mantissa in two steps, leading one, code,
        sum, choice.
        """
        return self.tree + 8

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        pipe, head = Pipeline(m, self.valid, self.latency), Handover(m, self.swap)
        for group in range(self.geometry.groups):
            self._group(m, pipe, head, group)
        return m

    def _group(self, m: Module, pipe: Pipeline, head: Handover, i: int) -> None:
        lanes = self.lanes[i * self.geometry.group:(i + 1) * self.geometry.group]
        # ~x is one less than -x and needs no carry; the lowest gets its 1 at the end
        highest, lowest = self._largest(m, pipe, list(lanes), f"high_{i}"), self._largest(
            m, pipe, [~x for x in lanes], f"low_{i}")
        at = self.tree
        high = pipe.hold(at, Mux(highest[-1], 0, highest[:-1]), f"high_{i}")
        low = pipe.hold(at, Mux(lowest[-1], 0, lowest[:-1] + 1), f"low_{i}")

        wide = head.at(at + 1, self.mode.wide, f"wide_{i}")
        renew = head.at(at + 1, self.mode.fresh, f"fresh_{i}")
        exponent = pipe.carry(0, self.exponent[i], at + 1, f"exponent_{i}")
        mantissa = pipe.carry(0, self.mantissa[i], at + 2, f"mantissa_{i}")
        sign = pipe.carry(0, self.sign[i], at + 1, f"sign_{i}")
        raised = pipe.carry(0, self.raised[i], at + 1, f"raised_{i}")
        code_unit, wide_unit = 1 << formats.UPDATE_FRACTION, 1 << (formats.UPDATE_FRACTION - formats.CODE_BITS)
        half = Mux(wide, wide_unit // 2, code_unit // 2)
        top = Mux(wide, formats.WIDE_MAX * wide_unit, formats.CODE_MAX * code_unit) + half
        bottom = Mux(wide, -formats.WIDE_MIN * wide_unit, -formats.CODE_MIN * code_unit) + half
        fits = pipe.hold(at + 1, (high < top) & (low <= bottom) & ~raised, f"fits_{i}")
        largest = pipe.hold(at + 1, larger(m, high, low), f"largest_{i}")
        turned = pipe.hold(at + 1, (high >= low) ^ sign, f"turned_{i}")
        small = (largest < formats.HELD_SHRINK << formats.UPDATE_FRACTION) & largest.any()
        exponent = pipe.hold(at + 1, exponent, f"exponent_{i}")
        keep = pipe.hold(at + 2, fits & ~(small & exponent.any()), f"keep_{i}")

        halves = [pipe.hold(at + 2, p, f"half_{i}_{n}") for n, p in enumerate(mantissa_parts(largest, mantissa))]
        magnitude = pipe.hold(at + 3, halves[0] + halves[1], f"magnitude_{i}")
        shifted, place = leading_one(m, magnitude, MAGNITUDE_BITS)
        shifted, place = pipe.hold(at + 4, shifted, f"shifted_{i}"), pipe.hold(at + 4, place, f"place_{i}")
        code = pipe.hold(at + 5, least_scale(m, shifted, place), f"least_{i}")
        clip = head.at(at + 6, Mux(self.mode.wide | self.mode.fresh, 0, formats.HELD_CLIP), f"clip_{i}")
        exponent = pipe.carry(at + 2, exponent, at + 6, f"exponent_{i}")
        octaves = (exponent - TOP_EXPONENT).as_signed().shift_left(formats.SCALE_MANTISSA)
        code = pipe.hold(at + 6, code + octaves - clip, f"code_{i}")

        renew = head.at(at + 7, renew, f"fresh_{i}", start=at + 1)
        given = head.at(at + 7, self.mode.supplied, f"supplied_{i}")
        keep = pipe.carry(at + 3, keep, at + 7, f"keep_{i}") & ~renew
        limit = formats.SCALE_MAGNITUDE_MAX
        new = Mux(code < 0, 0, Mux(code > limit, limit, code))[:formats.SCALE_BITS - 1]
        sign = pipe.carry(at + 1, sign, at + 7, f"sign_{i}")
        mantissa = pipe.carry(at + 2, mantissa, at + 7, f"mantissa_{i}")
        exponent = pipe.hold(at + 6, exponent, f"exponent_{i}")
        turned = pipe.carry(at + 2, turned, at + 7, f"turned_{i}")
        held = Cat(mantissa, exponent[:EXPONENT_BITS], sign)
        chosen = Mux(given, pipe.carry(0, self.supplied[i].as_value(), at + 7, f"given_{i}"),
                     Mux(keep, held, Cat(new, turned)))
        m.d.comb += [
            self.scales[i].as_value().eq(pipe.hold(at + 7, chosen, f"chosen_{i}")),
            self.renewed[i].eq(pipe.hold(at + 7, ~keep & ~renew & ~given, f"renewed_{i}")),
        ]

    def _largest(self, m: Module, pipe: Pipeline, values: list[Value], name: str) -> Value:
        """The largest of the values at stage ``tree``."""
        for stage in range(self.tree):
            for _ in range(LEVELS):
                if len(values) > 1:
                    values = [larger(m, a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
            values = [pipe.hold(stage, v, f"{name}_{n}") for n, v in enumerate(values)]
        return values[0]
