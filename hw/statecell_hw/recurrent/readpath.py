"""Read path: rows of the state or of a log in, one a cycle; outputs and what is added to the rows out."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import Multiplier
from statecell_hw.layouts import SCALE, QueryLoad
from statecell_hw.recurrent.backlog import Backlog
from statecell_hw.recurrent.delay import delayed
from statecell_hw.recurrent.error import Error
from statecell_hw.recurrent.gain import least
from statecell_hw.recurrent.operands import BELOW_BITS, HALVES, HEAD, LOST_BITS, WIDE_BITS, state_row
from statecell_hw.recurrent.pipeline import Handover
from statecell_hw.recurrent.readout import VECTORS, Readout, vector_geometry
from statecell_hw.recurrent.share import Share
from statecell_hw.recurrent.walk import FLAGS, stages

ENTRY = 1
"""Cycles from the ports to the read-out: 8-bit codes of both planes."""
LOAD = ENTRY + 2
"""Cycles from the ports until it is known how far a logged key lies below the factor."""
KEY_FALL = formats.KEY_FRACTION + formats.RECUR_FRACTION - formats.MIX_FRACTION
"""Right shift from a product with a logged key, whose LSB is 2^-KEY_FRACTION, to MIX_FRACTION."""


class ReadPath(wiring.Component):
    """r, d and o of rows, and the share of a log; docs/numerics.md, 8.3 and 8.6.

    ``flags``, ``row``, ``v``, ``age`` and the operands as of :class:`RecurrentPath`, ``load``, ``load_ready`` and
    ``full`` as of :class:`Dot`. ``o_valid`` comes with ``o``, ``o_last`` with that of the last channel, ``o_latency``
    cycles after the row, or, with a log, one a cycle from ``log_latency`` cycles after the last row of the pass on, and
    ``d_valid`` with ``d`` of these. ``d`` is there ``d_latency`` cycles after each row of a pass without log. With
    halves o and d are those of a channel's second row, and d stands for two cycles.

    For a commit: ``codes`` and ``scales`` of a row ENTRY cycles after it, ``below``, the octaves that a logged key lies
    below the factor, LOAD cycles after its row. ``entered``: the ``head`` of the last ``first`` row, from the next
    cycle on. Interval 1, and ``gap`` idle cycles between passes. Reset drops the rows inside.
    """

    flags: Any
    row: Any
    age: Signal
    v: Signal
    load: Any
    load_ready: Signal
    full: Signal
    head: Any
    entered: Any
    codes: list[Signal]
    scales: Any
    below: Signal
    o_valid: Signal
    o_last: Signal
    o: Signal
    d_valid: Signal
    d: Signal

    def __init__(self, geometry: Geometry, *, multiplier: Multiplier = "native") -> None:
        self.geometry = g = geometry
        self.readout, self.error = Readout(g, multiplier=multiplier), Error()
        self.share, self.backlog = Share(g, multiplier=multiplier), Backlog(g)
        super().__init__({
            "flags": In(FLAGS),
            "row": In(state_row(g)),
            "age": In(LOST_BITS),
            "v": In(signed(formats.VECTOR_BITS)),
            "load": In(QueryLoad(vector_geometry(g))),
            "load_ready": Out(1),
            "full": Out(HALVES * VECTORS),
            "head": In(HEAD),
            "entered": Out(HEAD),
            "codes": Out(signed(WIDE_BITS)).array(g.head_dim),
            "scales": Out(SCALE).array(g.groups),
            "below": Out(BELOW_BITS),
            "o_valid": Out(1),
            "o_last": Out(1),
            "o": Out(signed(formats.RECUR_BITS)),
            "d_valid": Out(1),
            "d": Out(signed(formats.RECUR_BITS)),
        })

    @property
    def _error_time(self) -> int:
        return ENTRY + self.readout.latency

    @property
    def d_latency(self) -> int:
        """Cycles from a row to what is added to it."""
        return self._error_time + self.error.d_latency

    @property
    def o_latency(self) -> int:
        """Cycles from a row to its output."""
        return self._error_time + self.error.latency

    @property
    def _drain_time(self) -> int:
        """From the last row of a pass to the first share of its log: all of it is in the sums."""
        return ENTRY + self.share.latency

    @property
    def log_latency(self) -> int:
        """Cycles from the last row of a pass with a log to the first of its outputs: share, sum with the rows."""
        return self._drain_time + self.backlog.latency + self.error.latency

    @property
    def gap(self) -> int:
        """Fewest idle cycles between the rows of two heads."""
        return self.readout.gap

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        for name in ("readout", "error", "share", "backlog"):
            m.submodules[name] = getattr(self, name)
        lanes = self.geometry.head_dim
        # the values of a log are there when the products of its keys with the vectors are
        assert self._error_time <= lanes
        # and so are the products of its first row, when the log has been summed
        assert self._error_time + 2 <= self._drain_time + lanes
        flags = stages(m, self.flags, max(self._error_time, self._drain_time))
        entered: Any = Signal(HEAD, name="entered_head", reset_less=True)
        with m.If(self.flags.row & self.flags.first):
            m.d.sync += entered.eq(self.head)
        m.d.comb += self.entered.eq(entered)
        self._read(m, flags, entered)
        self._errors(m, flags, entered)
        return m

    def _read(self, m: Module, flags: list[Any], head: Any) -> None:
        """Registers of the row's 8-bit codes, in front of the read-out, and what is further taken from its products."""
        readout, mode, here = self.readout, self.head.mode, flags[0]
        wiring.connect(m, wiring.flipped(self.load), readout.load)
        swap = here.row & here.first & ~here.commit
        m.d.comb += [
            readout.valid.eq(flags[ENTRY].row), readout.halves.eq(flags[ENTRY].halves),
            readout.half.eq(flags[ENTRY].half),
            readout.swap.eq(swap),
            readout.mode.eq(head.mode),
            readout.halved.eq(head.halved),
            self.load_ready.eq(readout.load_ready),
            self.full.eq(readout.full),
        ]
        of_state = ~here.key & ~here.load & ~here.value
        both = Signal()
        now = Mux(swap, mode.wide & ~mode.blind, head.mode.wide & ~head.mode.blind)
        m.d.comb += both.eq(now | ~of_state)
        for lane, code in enumerate(readout.codes):
            held = Signal(signed(WIDE_BITS), name=f"code_{lane}", reset_less=True)
            low = Mux(both, self.row.low[lane], 0)
            with m.If(here.row):
                m.d.sync += held.eq(self.row.high[lane].shift_left(formats.CODE_BITS) + low)
            m.d.comb += [code.eq(held), self.codes[lane].eq(held)]
        for i, scale in enumerate(readout.scales):
            held = Signal(SCALE, name=f"scale_{i}", reset_less=True)
            with m.If(here.row):
                m.d.sync += held.eq(self.row.scales[i])
            m.d.comb += [scale.eq(held), self.scales[i].eq(held)]
        age, is_key = Signal(LOST_BITS, reset_less=True), flags[LOAD].key
        shifts = [Signal.like(head.mode.shift, name=f"shift_{i}", reset_less=True) for i in range(2)]
        m.d.sync += [age.eq(Mux(of_state, 0, self.age)), shifts[0].eq(head.mode.shift), shifts[1].eq(shifts[0])]
        for vector, fall in enumerate(readout.falls):
            below = Signal(LOST_BITS, name=f"below_{vector}", reset_less=True)
            short = Signal(BELOW_BITS, name=f"short_{vector}", reset_less=True)
            m.d.sync += [below.eq(head.lost[vector] - age), short.eq(least(below, formats.LOST_MAX))]
            m.d.comb += fall.eq(short + Mux(is_key, shifts[1] + KEY_FALL, 0))
            if vector == 1:
                m.d.comb += self.below.eq(short)
        assert ENTRY + readout.fall_lead == LOAD

    def _errors(self, m: Module, flags: list[Any], entered: Any) -> None:
        """Outputs and what is added: at once, or of a head with a log when its log has been summed."""
        error, readout, share, backlog = self.error, self.readout, self.share, self.backlog
        time = self._error_time
        now, before, early, late = flags[time], flags[time - 1], flags[ENTRY], flags[self._drain_time]
        of_state = now.row & ~now.key & ~now.value & ~now.load & ~now.commit
        v: Value = delayed(m, self.v, time, "v")
        # the first row's own strobe is that of the cycle before it reaches the read-out
        handover = Handover(m, self.flags.row & self.flags.first)
        head: Any = HEAD(handover.at(time - ENTRY, entered.as_value(), "error_head"))
        m.d.comb += [
            share.mixed_valid.eq(now.row & now.key & now.log), share.mixed_index.eq(now.index),
            share.mixed[0].eq(readout.o), share.mixed[1].eq(readout.r),
            share.valid.eq(early.row & early.value & early.log), share.index.eq(early.index),
            *(a.eq(b) for a, b in zip(share.codes, readout.codes, strict=True)),
            *(a.eq(b) for a, b in zip(share.scales, readout.scales, strict=True)),
            share.drain.eq(backlog.drain), *(a.eq(b) for a, b in zip(backlog.shares, share.shares, strict=True)),
            backlog.valid.eq(of_state & now.log), backlog.begins.eq(now.row & now.first & now.log),
            backlog.head.eq(head), backlog.closing.eq(late.row & late.last & late.log),
            backlog.products.o.eq(readout.o), backlog.products.r.eq(readout.r), backlog.products.v.eq(v),
        ]
        direct_swap = before.row & before.first & ~before.log & ~before.commit
        from_log = Signal()
        with m.If(backlog.swap | direct_swap):
            m.d.sync += from_log.eq(backlog.swap)
        m.d.comb += [
            error.valid.eq((of_state & ~now.log & (now.half | ~now.halves)) | backlog.sums_valid),
            error.swap.eq(direct_swap | backlog.swap),
            error.v.eq(Mux(from_log, backlog.sums.v, v)), error.r.eq(Mux(from_log, backlog.sums.r, readout.r)),
            error.o_rows.eq(Mux(from_log, backlog.sums.o, readout.o)),
            error.head.eq(Mux(from_log, backlog.sums_head.as_value(), head.as_value())),
            self.o.eq(error.o), self.d.eq(error.d),
        ]
        valid: Value = error.valid
        ended: Value = Mux(from_log, backlog.last, now.last)
        logged: Value = backlog.sums_valid
        for stage in range(error.latency):
            held = Signal(3, name=f"error_flags_{stage}")
            m.d.sync += held.eq(Cat(valid, ended, logged))
            valid, ended, logged = held
            if stage + 1 == error.d_latency:
                m.d.comb += self.d_valid.eq(logged)
        m.d.comb += [self.o_valid.eq(valid), self.o_last.eq(ended)]
