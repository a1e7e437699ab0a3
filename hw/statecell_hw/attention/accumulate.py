"""Accumulate unit: weight times value row added up per lane, and the drain registers that free it for the next pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import hold
from statecell_hw.array.multiply import Multiplier, partial, stages, weight_form


class Accumulate(wiring.Component):
    """Sums of weight * code and of the normaliser's terms; exact but for the 4 bits that a step drops.

    One row per cycle: ``codes``, and for each lane ``weights``, ``terms``, ``enable``, ``fresh`` and ``step`` of
    :class:`Softmax`. ``latency`` cycles later the row is in the accumulators: old * 1, old >> 4 (``step``) or 0
    (``fresh``), plus the row. A lane without ``enable`` holds.

    A fresh row clears its lane one cycle before it is added.
    ``capture`` copies accumulators and normalisers to the drain registers; ``drain_sums`` [lane] stay until the next
    ``capture``; ``drain`` is the first of the words of all lanes in order, which ``shift`` moves on by one: a choice
    among all would have to reach the whole array within a cycle. ``shift`` is high with ``capture`` too: it alone
    enables the drain registers. Both act ``drain_latency`` cycles later, on what the accumulators hold then.
    """

    codes: list[Signal]
    weights: list[list[Signal]]
    terms: list[Signal]
    enable: Signal
    fresh: Signal
    step: Signal
    capture: Signal
    shift: Signal
    drain: list[Signal]
    drain_sums: list[Signal]

    def __init__(self, geometry: Geometry, *, multiplier: Multiplier = "native") -> None:
        self.geometry = g = geometry
        self.form = weight_form(multiplier)
        super().__init__({
            "codes": In(signed(g.effective_bits)).array(g.head_dim),
            "weights": In(signed(formats.WEIGHT_BITS + 1)).array(g.lanes, g.groups),
            "terms": In(formats.WEIGHT_BITS).array(g.lanes),
            "enable": In(g.lanes),
            "fresh": In(g.lanes),
            "step": In(g.lanes),
            "capture": In(1),
            "shift": In(1),
            "drain": Out(signed(g.accumulator_bits)).array(g.word),
            "drain_sums": Out(g.normaliser_bits).array(g.lanes),
        })

    @property
    def latency(self) -> int:
        """Cycles from a row and its weights to the accumulators that contain it: across an FPGA's array, the products'
        levels, add.
        """
        return int(self._spread) + self._levels + 1

    @property
    def drain_latency(self) -> int:
        """Cycles from ``capture`` and ``shift`` to what they do: across an FPGA's array in two steps."""
        return 2 * self._spread

    @property
    def _spread(self) -> bool:
        return self.form != "native"

    @property
    def _levels(self) -> int:
        return stages(self.geometry.effective_bits, self.form)

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        levels = self._levels
        results: list[Signal] = []
        row, taken = self.enable.any(), self.enable
        capture, shift = self.capture, self.shift
        codes, weights_in = [list(self.codes)], [list(w) for w in self.weights]
        fields: list[Any] = [self.fresh, self.step, *self.terms]
        if self._spread:
            taken = Signal.like(self.enable, name="taken")
            m.d.sync += taken.eq(self.enable)
            codes = [hold(m, row, codes[0], "code")]
            weights_in = [hold(m, self.enable[lane], w, f"weight_{lane}") for lane, w in enumerate(weights_in)]
            fields = hold(m, row, fields, "field")
            row = taken.any()
        for i in range(self.drain_latency):
            later = [Signal(name=f"capture_{i}"), Signal(name=f"shift_{i}")]
            m.d.sync += [later[0].eq(capture), later[1].eq(shift)]
            capture, shift = later
        fresh, steps, *terms = fields
        for stage in range(levels - 1):
            codes.append(hold(m, row, codes[-1], f"code_{stage}"))
            row_1 = Signal(name=f"row_{stage}")
            m.d.sync += row_1.eq(row)
            row = row_1
        for lane in range(g.lanes):
            enable, restart = [taken[lane]], [taken[lane] & fresh[lane]]
            for stage in range(levels):
                enable.append(Signal(name=f"enable_{lane}_{stage}"))
                restart.append(Signal(name=f"restart_{lane}_{stage}"))
                m.d.sync += [enable[-1].eq(enable[-2]), restart[-1].eq(restart[-2])]
            weights = weights_in[lane]
            products: list[Signal] = []
            row_fields: list[Any] = [steps[lane], terms[lane]]
            for stage in range(levels):
                name = f"{lane}_{stage}"
                before: Sequence[Value | None] = products or [None] * g.head_dim
                products = hold(m, enable[stage], [
                    partial(stage, weights[j // g.group], code, b, self.form)
                    for j, (code, b) in enumerate(zip(codes[stage], before, strict=True))
                ], f"product_{name}")
                row_fields = hold(m, enable[stage], row_fields, f"field_{name}")
                if stage < levels - 1:
                    weights = hold(m, enable[stage], weights, f"weight_{name}")
            step, term = row_fields
            total = Signal(g.normaliser_bits, name=f"total_{lane}", reset_less=True)
            sums = [
                Signal(signed(g.accumulator_bits), name=f"accumulator_{lane}_{j}", reset_less=True)
                for j in range(g.head_dim)
            ]
            with m.If(enable[levels]):
                for register, increment in [(total, term), *zip(sums, products, strict=True)]:
                    m.d.sync += register.eq(Mux(step, register >> formats.STEP_OCTAVES, register) + increment)
            # what a fresh row throws away goes a cycle before it comes: a clear costs a register nothing, while a
            # third choice in front of the adder would cost a look-up table a bit
            with m.If(restart[levels - 1]):
                m.d.sync += [register.eq(0) for register in (total, *sums)]
            with m.If(capture):
                m.d.sync += self.drain_sums[lane].eq(total)
            results += sums
        drain = [Signal.like(s, name=f"drain_{j}", reset_less=True) for j, s in enumerate(results)]
        following: list[Value] = [*drain[g.word:], *results[-g.word:]]  # nothing reads what comes after the last word
        with m.If(shift):
            m.d.sync += [d.eq(Mux(capture, s, f)) for d, s, f in zip(drain, results, following, strict=True)]
        m.d.comb += [d.eq(s) for d, s in zip(self.drain, drain, strict=False)]
        return m
