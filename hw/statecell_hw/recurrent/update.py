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

TOTAL_BITS = 22
"""Signed sum of products: a gain of GAIN_BITS times a code, or gains that add up to less than 2^12 and half of LOG_MAX
times codes of the largest.
"""


class Update(wiring.Component):
    """x = (256 high + feedback low) >> fall + (sum of gain * key code >> 8) in each lane; docs/numerics.md, 8.4.

    ``high``, ``low`` and ``fall`` (one a group) come with ``valid``, ``gain`` (one a group) ``gain_lead`` cycles later;
    ``lanes``, UPDATE_BITS with UPDATE_FRACTION, follow ``latency`` cycles after ``valid``; interval 1. With ``entry``,
    what comes is a logged key, ``high`` and ``low`` its codes, and ``lanes`` are those of the row before with the gains
    times all keys since; else it is a row of the state, whose gain meets the first or, with ``half``, the second half
    of ``key``, or 0 with ``bare``. ``feedback`` is that of the rows from the cycle after ``swap`` on and must hold for
    MIN_ROWS cycles; ``key`` must hold from ``swap`` until ``key_taken`` is high for a cycle.
    """

    valid: Signal
    high: list[Signal]
    low: list[Signal]
    fall: list[Signal]
    gain: list[Signal]
    entry: Signal
    bare: Signal
    half: Signal
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
            "entry": In(1),
            "bare": In(1),
            "half": In(1),
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
        """Cycles from a row to its updated lanes: products after the gains, their sum, and the sum with the row."""
        return self.gain_lead + self._product_levels + 2

    @property
    def _product_levels(self) -> int:
        return stages(WIDE_BITS, self.form)

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        pipe, head = Pipeline(m, self.valid, self.latency), Handover(m, self.swap)
        m.d.comb += self.key_taken.eq(head.strobe(self.gain_lead))
        product_time = self.gain_lead + self._product_levels
        entries = [pipe.carry(0, self.entry, stage, f"entry_{stage}") for stage in (self.gain_lead, product_time)]
        bare = pipe.carry(0, self.bare, self.gain_lead, "bare")
        half = pipe.carry(0, self.half, self.gain_lead, "half")
        gains: list[list[Value]] = []
        for group, gain in enumerate(self.gain):
            gains.append([Mux(bare & ~entries[0], 0, gain).as_signed()])
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
            own_code = self.high[lane].shift_left(formats.CODE_BITS) + self.low[lane]
            own_code = pipe.carry(0, own_code[:WIDE_BITS].as_signed(), self.gain_lead, f"code_{lane}")
            first, second = (head.at(self.gain_lead, codes[lane], f"key_{lane}_{n}")
                             for n, codes in enumerate(self.key.codes))
            code = Mux(entries[0], own_code, Mux(half, second, first)).as_signed()
            product: Value | None = None
            for stage in range(self._product_levels):
                at = self.gain_lead + stage
                product = pipe.hold(at, partial(stage, gains[group][stage], code, product, self.form),
                                    f"product_{lane}")
                code = pipe.hold(at, code, f"later_code_{lane}") if stage + 1 < self._product_levels else code
            assert product is not None
            start = pipe.carry(self.gain_lead, start, product_time, f"start_{lane}")
            total = Signal(signed(TOTAL_BITS), name=f"total_{lane}", reset_less=True)
            row = Signal(start.shape(), name=f"row_{lane}", reset_less=True)
            with m.If(pipe.valid[product_time]):
                m.d.sync += total.eq(Mux(entries[1], total, 0) + product)
                with m.If(~entries[1]):
                    m.d.sync += row.eq(start)
            held = pipe.hold(product_time + 1, (row + (total >> formats.GAIN_FRACTION))[:formats.UPDATE_BITS]
                             .as_signed(), f"lane_{lane}")
            m.d.comb += self.lanes[lane].eq(held)
        return m
