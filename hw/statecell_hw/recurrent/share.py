"""Share of the logged tokens in the read-outs, summed over a head's log."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import Multiplier, mantissa_parts, partial, stages, weight_form
from statecell_hw.attention.score import saturate
from statecell_hw.layouts import SCALE
from statecell_hw.recurrent.delay import DelayLine
from statecell_hw.recurrent.operands import WIDE_BITS
from statecell_hw.recurrent.pipeline import Pipeline
from statecell_hw.recurrent.readout import VECTORS

SUM_BITS = formats.SHARE_BITS + WIDE_BITS - 1 + formats.LOG_MAX.bit_length() - 1
"""Signed sum of LOG_MAX products of a weight with a code, of which -128 is the largest."""
TOP_SHIFT = formats.MIX_FRACTION + formats.SCALE_BIAS + formats.CODE_BITS - formats.RECUR_FRACTION - formats.SHARE_GUARD
"""Right shift of a weight at scale exponent 0."""


class Share(wiring.Component):
    """Sum over the log of (vector . key) * d in each channel, for q and k; docs/numerics.md, 8.6.

    ``mixed``, the products of both vectors with the key of ``mixed_index``, MIX_BITS with MIX_FRACTION, are taken with
    ``mixed_valid``. Then ``codes`` (8 bits, a lane per channel) and ``scales`` of each d come with ``valid`` and
    ``index``; it is part of the sums after ``latency`` cycles; interval 1. ``shares`` are the sums of a channel,
    RECUR_BITS with RECUR_FRACTION, saturating, a cycle after ``drain``, which moves on to the next one: head_dim
    ``drain`` in all, none of them with a d in the block, leave sums of 0, as reset does.
    """

    mixed_valid: Signal
    mixed_index: Signal
    mixed: list[Signal]
    valid: Signal
    index: Signal
    codes: list[Signal]
    scales: Any
    drain: Signal
    shares: list[Signal]

    def __init__(self, geometry: Geometry, *, multiplier: Multiplier = "native") -> None:
        self.geometry = g = geometry
        self.form = weight_form(multiplier)
        super().__init__({
            "mixed_valid": In(1),
            "mixed_index": In(range(formats.LOG_MAX)),
            "mixed": In(signed(formats.MIX_BITS)).array(VECTORS),
            "valid": In(1),
            "index": In(range(formats.LOG_MAX)),
            "codes": In(signed(WIDE_BITS)).array(g.head_dim),
            "scales": In(SCALE).array(g.groups),
            "drain": In(1),
            "shares": Out(signed(formats.RECUR_BITS)).array(VECTORS),
        })

    @property
    def _weight_time(self) -> int:
        """Cycles from a d to its weights: product, mantissa in two steps, sign, shift in two steps, rounding."""
        return 7

    @property
    def _levels(self) -> int:
        return stages(WIDE_BITS, self.form)

    @property
    def latency(self) -> int:
        """Cycles from a d to the sums with it: weights, products, sum."""
        return self._weight_time + self._levels + 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        pipe = Pipeline(m, self.valid, self.latency)
        memory: Memory = Memory(shape=formats.MIX_BITS * VECTORS, depth=formats.LOG_MAX, init=[])
        m.submodules.memory = memory
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [
            write.en.eq(self.mixed_valid), write.addr.eq(self.mixed_index), write.data.eq(Cat(*self.mixed)),
            read.addr.eq(self.index),
        ]
        m.submodules.codes = line = DelayLine(WIDE_BITS * g.head_dim, self._weight_time)
        m.d.comb += line.i.eq(Cat(*self.codes))
        codes = [[line.o.word_select(lane, WIDE_BITS).as_signed() for lane in range(g.head_dim)]]
        for stage in range(self._levels - 1):
            codes.append([pipe.hold(self._weight_time + stage, code, f"code_{lane}")
                          for lane, code in enumerate(codes[-1])])
        done = self._weight_time + self._levels
        for vector in range(VECTORS):
            mixed = read.data.word_select(vector, formats.MIX_BITS).as_signed()
            weights = [self._weight(pipe, mixed, scale, f"{vector}_{group}") for group, scale in enumerate(self.scales)]
            sums = [Signal(signed(SUM_BITS), name=f"sum_{vector}_{lane}") for lane in range(g.head_dim)]
            for stage in range(1, self._levels):
                weights += [pipe.hold(self._weight_time + stage - 1, w, f"weight_{vector}_{group}")
                            for group, w in enumerate(weights[-g.groups:])]
            for lane, total in enumerate(sums):
                product: Value | None = None
                for stage in range(self._levels):
                    product = pipe.hold(self._weight_time + stage, partial(
                        stage, weights[stage * g.groups + lane // g.group], codes[stage][lane], product, self.form),
                        f"product_{vector}_{lane}")
                assert product is not None
                with m.If(self.drain):
                    m.d.sync += total.eq(sums[lane + 1] if lane + 1 < g.head_dim else 0)
                with m.Elif(pipe.valid[done]):
                    m.d.sync += total.eq(total + product)
            rounded = ((sums[0] >> (formats.SHARE_GUARD - 1)) + 1) >> 1
            shown = Signal(signed(formats.RECUR_BITS), name=f"share_{vector}", reset_less=True)
            m.d.sync += shown.eq(saturate(rounded, formats.RECUR_BITS))
            m.d.comb += self.shares[vector].eq(shown)
        return m

    def _weight(self, pipe: Pipeline, mixed: Value, scale: Any, name: str) -> Any:
        """Weight of a group's codes: product with the mantissa and sign of their scale, shifted by its exponent."""
        scale = pipe.hold(0, scale.as_value(), f"scale_{name}")
        value = pipe.hold(1, mixed, f"mixed_{name}")
        mantissa = pipe.hold(1, scale[:formats.SCALE_MANTISSA], f"mantissa_{name}")
        right = TOP_SHIFT - 1 - scale[formats.SCALE_MANTISSA:-1]
        right = pipe.carry(1, right[:4], 4, f"right_{name}")
        turned = pipe.carry(1, scale[-1], 3, f"turned_{name}")
        halves = [pipe.hold(2, p, f"half_{name}_{i}") for i, p in enumerate(mantissa_parts(value, mantissa))]
        total = halves[0] + halves[1]
        product = pipe.hold(3, Mux(turned, -total, total), f"weighed_{name}")
        coarse = pipe.hold(4, product >> Cat(0, 0, right[2:]).as_unsigned(), f"coarse_{name}")
        fine = pipe.hold(4, right[:2], f"fine_{name}")
        shifted = pipe.hold(5, coarse >> fine, f"shifted_{name}")
        return pipe.hold(6, saturate((shifted + 1) >> 1, formats.SHARE_BITS), f"weight_{name}")
