"""Update: a row's stored lanes in the working scale plus the token's."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import Multiplier, partial, stages, weight_form
from statecell_hw.recurrent.operands import FALL_BITS, WIDE_BITS, key_layout
from statecell_hw.recurrent.pipeline import Handover, Pipeline


class Update(wiring.Component):
    """x = (256 high + feedback low) >> fall + (gain * key code >> 8) in each lane; docs/numerics.md, 8.4.

    ``high``, ``low`` and ``fall`` (one a group) come with ``valid``, ``gain`` (one a group) ``gain_lead`` cycles later;
    ``lanes``, UPDATE_BITS with UPDATE_FRACTION, follow ``latency`` cycles after ``valid``; interval 1. ``feedback`` is
    that of the rows from the cycle after ``swap`` on and must hold for MIN_ROWS cycles; ``key`` must hold from ``swap``
    until ``key_taken`` is high for a cycle. Between the rows of two heads are at least ``gap`` idle cycles.
    """

    valid: Signal
    high: list[Signal]
    low: list[Signal]
    fall: list[Signal]
    gain: list[Signal]
    swap: Signal
    feedback: Signal
    key: Any
    key_taken: Signal
    lanes: list[Signal]

    def __init__(self, geometry: Geometry, *, multiplier: Multiplier = "native") -> None:
        self.geometry = g = geometry
        self.form = weight_form(multiplier)
        super().__init__({
            "valid": In(1),
            "high": In(signed(formats.CODE_BITS)).array(g.head_dim),
            "low": In(signed(formats.CODE_BITS)).array(g.head_dim),
            "fall": In(FALL_BITS).array(g.groups),
            "gain": In(signed(formats.GAIN_BITS)).array(g.groups),
            "swap": In(1),
            "feedback": In(formats.FEEDBACK_FRACTION + 1),
            "key": In(key_layout(g)),
            "key_taken": Out(1),
            "lanes": Out(signed(formats.UPDATE_BITS)).array(g.head_dim),
        })

    @property
    def gain_lead(self) -> int:
        """Cycles from a row to its gains."""
        return 2

    @property
    def latency(self) -> int:
        """Cycles from a row to its updated lanes: products after the gains, and the sum."""
        return self.gain_lead + self._product_levels + 1

    @property
    def gap(self) -> int:
        """Fewest idle cycles between the rows of two heads: the key stands still while a row's products are made."""
        return self._product_levels - 1

    @property
    def _product_levels(self) -> int:
        return stages(WIDE_BITS, self.form)

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        pipe, head = Pipeline(m, self.valid, self.latency), Handover(m, self.swap)
        m.d.comb += self.key_taken.eq(head.strobe(self.gain_lead))
        gains: list[list[Value]] = []
        for group, gain in enumerate(self.gain):
            gains.append([gain])
            for stage in range(self._product_levels - 1):
                gains[group].append(pipe.hold(self.gain_lead + stage, gains[group][-1], f"gain_{group}"))
        for lane in range(g.head_dim):
            group = lane // g.group
            # the fall of one lane and the feedback of its low plane, then the shift, in the two cycles before the gain
            own = Signal(FALL_BITS, name=f"own_fall_{lane}", reset_less=True)
            with m.If(self.swap):
                m.d.sync += own.eq(self.key.falls[lane])
            fallen = own + self.fall[group]
            fall = pipe.hold(0, Mux(fallen > formats.UPDATE_BITS, formats.UPDATE_BITS, fallen)[:FALL_BITS],
                             f"fall_{lane}")
            start = self.high[lane].shift_left(formats.UPDATE_FRACTION) + self.low[lane] * self.feedback
            start = pipe.hold(0, start[:formats.UPDATE_BITS - 1].as_signed(), f"start_{lane}")
            start = pipe.hold(1, start >> fall, f"start_{lane}")
            code = head.at(self.gain_lead, self.key.codes[lane], f"key_{lane}")
            product: Value | None = None
            for stage in range(self._product_levels):
                product = pipe.hold(self.gain_lead + stage, partial(stage, gains[group][stage], code, product,
                                                                   self.form), f"product_{lane}")
            assert product is not None
            start = pipe.carry(self.gain_lead, start, self.latency - 1, f"start_{lane}")
            total = start + (product >> formats.GAIN_FRACTION)
            held = pipe.hold(self.latency - 1, total[:formats.UPDATE_BITS].as_signed(), f"lane_{lane}")
            m.d.comb += self.lanes[lane].eq(held)
        return m
