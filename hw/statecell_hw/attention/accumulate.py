"""Accumulate unit: weight times value row added up per lane, and the drain registers that free it for the next pass."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import Multiplier, product


class Accumulate(wiring.Component):
    """Sums of weight * code and of the normaliser's terms; exact but for the 4 bits that a step drops.

    One row per cycle: ``codes``, and for each lane ``weights``, ``terms``, ``enable``, ``fresh`` and ``step`` of
    :class:`Softmax`. ``latency`` cycles later the row is in the accumulators: old * 1, old >> 4 (``step``) or 0
    (``fresh``), plus the row. A lane without ``enable`` holds.

    ``capture`` copies accumulators and normalisers to ``drain`` [lane][element] and ``drain_sums`` [lane], where they
    stay until the next ``capture``; it takes what the accumulators hold in that cycle.
    """

    codes: list[Signal]
    weights: list[list[Signal]]
    terms: list[Signal]
    enable: Signal
    fresh: Signal
    step: Signal
    capture: Signal
    drain: list[list[Signal]]
    drain_sums: list[Signal]

    def __init__(self, geometry: Geometry, *, multiplier: Multiplier = "native") -> None:
        self.geometry = g = geometry
        self.multiplier: Multiplier = multiplier
        super().__init__({
            "codes": In(signed(g.effective_bits)).array(g.head_dim),
            "weights": In(signed(formats.WEIGHT_BITS + 1)).array(g.lanes, g.groups),
            "terms": In(formats.WEIGHT_BITS).array(g.lanes),
            "enable": In(g.lanes),
            "fresh": In(g.lanes),
            "step": In(g.lanes),
            "capture": In(1),
            "drain": Out(signed(g.accumulator_bits)).array(g.lanes, g.head_dim),
            "drain_sums": Out(g.normaliser_bits).array(g.lanes),
        })

    @property
    def latency(self) -> int:
        """Cycles from a row and its weights to the accumulators that contain it: multiply, add."""
        return 2

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        enable = Signal(g.lanes)
        m.d.sync += enable.eq(self.enable)
        for lane in range(g.lanes):
            fresh = Signal(name=f"fresh_{lane}", reset_less=True)
            step = Signal(name=f"step_{lane}", reset_less=True)
            term = Signal(formats.WEIGHT_BITS, name=f"term_{lane}", reset_less=True)
            total = Signal(g.normaliser_bits, name=f"total_{lane}", reset_less=True)
            products = [
                Signal(signed(formats.WEIGHT_BITS + g.effective_bits), name=f"product_{lane}_{j}", reset_less=True)
                for j in range(g.head_dim)
            ]
            sums = [
                Signal(signed(g.accumulator_bits), name=f"accumulator_{lane}_{j}", reset_less=True)
                for j in range(g.head_dim)
            ]
            with m.If(self.enable[lane]):
                m.d.sync += [fresh.eq(self.fresh[lane]), step.eq(self.step[lane]), term.eq(self.terms[lane])]
                m.d.sync += [
                    p.eq(product(self.weights[lane][j // g.group], self.codes[j], self.multiplier))
                    for j, p in enumerate(products)
                ]

            with m.If(enable[lane]):
                for register, increment in [(total, term), *zip(sums, products, strict=True)]:
                    old = Mux(fresh, 0, Mux(step, register >> formats.STEP_OCTAVES, register))
                    m.d.sync += register.eq(old + increment)
            with m.If(self.capture):
                m.d.sync += self.drain_sums[lane].eq(total)
                m.d.sync += [d.eq(s) for d, s in zip(self.drain[lane], sums, strict=True)]
        return m
