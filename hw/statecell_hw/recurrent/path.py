"""Recurrent path: state rows of many heads in, one a cycle; outputs and rows to write back out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import Multiplier
from statecell_hw.layouts import SCALE, QueryLoad
from statecell_hw.recurrent.backlog import Backlog
from statecell_hw.recurrent.choose import Choose
from statecell_hw.recurrent.delay import DelayLine
from statecell_hw.recurrent.error import Error
from statecell_hw.recurrent.fold import Fold
from statecell_hw.recurrent.gain import Gain, least
from statecell_hw.recurrent.noise import Noise
from statecell_hw.recurrent.operands import BELOW_BITS, HEAD, LOST_BITS, WIDE_BITS, key_layout, state_row
from statecell_hw.recurrent.pipeline import MIN_ROWS, Handover
from statecell_hw.recurrent.readout import VECTORS, Readout, vector_geometry
from statecell_hw.recurrent.requantise import Requantise
from statecell_hw.recurrent.share import Share
from statecell_hw.recurrent.update import Update
from statecell_hw.recurrent.walk import FLAGS

ENTRY = 1
"""Cycles from the ports to the read-out: 8-bit codes of both planes."""
LOAD = ENTRY + 2
"""Cycles from the ports until it is known how far a logged key lies below the factor."""
KEY_FALL = formats.KEY_FRACTION + formats.RECUR_FRACTION - formats.MIX_FRACTION
"""Right shift from a product with a logged key, whose LSB is 2^-KEY_FRACTION, to MIX_FRACTION."""
Scalars = Callable[[int, str], Any]
"""A head's operands at a time, with a name for their registers."""


class RecurrentPath(wiring.Component):
    """The recurrent step on rows; docs/numerics.md, 8.3 to 8.7.

    ``row`` comes with ``flags`` (see :class:`Walk`; a cycle may bring a row, a token of a sweep over ``swept``, both or
    nothing), a row of the state with its value ``v`` and, for supplied scales, ``supplied``, a logged key with its
    ``age``, the octaves that the factor had lost at its token. A head's rows of the state are MIN_ROWS or more, and
    come with any gaps, those of the log, and of commits, without.

    ``o_valid`` comes with ``o`` (RECUR_BITS, RECUR_FRACTION), ``o_last`` with that of the last channel: ``o_latency``
    cycles after the row, or, with a log, one a cycle from ``log_latency`` cycles after the last row of the pass on,
    when each channel's ``d`` comes with ``d_valid`` as well. ``write_valid`` comes ``latency`` cycles after the row
    that ends an update, for heads that write, with ``write_row`` and ``renewed``, the groups that took a new scale
    where it is held; ``written`` at that time for the last row of a pass without log, with ``noise``, the register that
    the head's next token begins with if this one writes. Interval 1, and ``gap`` idle cycles between passes.

    Operands: ``load`` (of :class:`Dot`) fills the vectors, ``full`` shows them; ``head`` must be right in the cycle of
    a ``first`` row; ``key`` is that of the oldest head whose ``key_taken`` has not come, and must stand from the cycle
    of its ``first`` row until then; keys of tokens that are logged are not taken here. Reset drops the rows inside.
    """

    flags: Any
    row: Any
    age: Signal
    swept: Signal
    v: Signal
    supplied: Any
    load: Any
    load_ready: Signal
    full: Signal
    head: Any
    key: Any
    key_taken: Signal
    o_valid: Signal
    o_last: Signal
    o: Signal
    d_valid: Signal
    d: Signal
    write_valid: Signal
    write_row: Any
    written: Signal
    renewed: list[Signal]
    noise: Signal

    def __init__(self, geometry: Geometry, *, multiplier: Multiplier = "native") -> None:
        self.geometry = g = geometry
        self.readout = Readout(g, multiplier=multiplier)
        self.error, self.gain = Error(), Gain(g)
        self.update = Update(g, multiplier=multiplier)
        self.choose, self.requantise, self.lfsr = Choose(g), Requantise(g), Noise()
        self.share, self.backlog = Share(g, multiplier=multiplier), Backlog(g)
        self.fold = Fold(g, lead=self._gain_time + 1 - LOAD, raised_latency=self.gain.raised_latency,
                         latency=self.gain.raised_latency + self.update.gain_lead)
        super().__init__({
            "flags": In(FLAGS),
            "row": In(state_row(g)),
            "age": In(LOST_BITS),
            "swept": In(range(g.head_dim)),
            "v": In(signed(formats.VECTOR_BITS)),
            "supplied": In(SCALE).array(g.groups),
            "load": In(QueryLoad(vector_geometry(g))),
            "load_ready": Out(1),
            "full": Out(VECTORS),
            "head": In(HEAD),
            "key": In(key_layout(g)),
            "key_taken": Out(1),
            "o_valid": Out(1),
            "o_last": Out(1),
            "o": Out(signed(formats.RECUR_BITS)),
            "d_valid": Out(1),
            "d": Out(signed(formats.RECUR_BITS)),
            "write_valid": Out(1),
            "write_row": Out(state_row(g)),
            "written": Out(1),
            "renewed": Out(1).array(g.groups),
            "noise": Out(formats.LFSR_BITS),
        })

    # -- times, in cycles after a row's ``valid`` ----------------------------------------------------------------------
    @property
    def _error_time(self) -> int:
        return ENTRY + self.readout.latency

    @property
    def _gain_time(self) -> int:
        return self._error_time + self.error.d_latency - self.gain.lead

    @property
    def _update_time(self) -> int:
        return self._gain_time + self.gain.raised_latency

    @property
    def _choose_time(self) -> int:
        return self._update_time + self.update.latency

    @property
    def _requantise_time(self) -> int:
        return self._choose_time + self.choose.latency

    @property
    def _noise_time(self) -> int:
        return self._requantise_time + self.requantise.noise_lead

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
    def latency(self) -> int:
        """Cycles from a row to the row written back."""
        return self._requantise_time + self.requantise.latency

    @property
    def gap(self) -> int:
        """Fewest idle cycles between the rows of two heads."""
        return self.readout.gap

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        for name in ("readout", "error", "gain", "update", "choose", "requantise", "lfsr", "share", "backlog",
                     "fold"):
            m.submodules[name] = getattr(self, name)
        # the values of a log are there when the products of its keys with the vectors are
        assert self._error_time <= g.head_dim
        # and so are the products of its first row, when the log has been summed
        assert self._error_time + 2 <= self._drain_time + g.head_dim
        flags = self._flags(m)
        # the first row's own strobe is that of the cycle before it reaches the read-out
        first = self.flags.row & self.flags.first
        handover = Handover(m, first)
        entered: Any = Signal(HEAD, name="entered", reset_less=True)
        with m.If(first):
            m.d.sync += entered.eq(self.head)

        def scalars(time: int, name: str) -> Any:
            return HEAD(handover.at(time - ENTRY, entered.as_value(), name))

        self._read(m, flags, entered)
        self._errors(m, flags, scalars)
        self._updates(m, flags, scalars)
        self._writes(m, flags, scalars)
        return m

    def _errors(self, m: Module, flags: list[Any], scalars: Scalars) -> None:
        """Outputs and what is added: at once, or of a head with a log when its log has been summed."""
        error, readout, share, backlog = self.error, self.readout, self.share, self.backlog
        time = self._error_time
        now, before, early, late = flags[time], flags[time - 1], flags[ENTRY], flags[self._drain_time]
        of_state = now.row & ~now.key & ~now.value & ~now.load & ~now.commit
        v: Value = self._delay(m, self.v, 0, time, "v")
        at_error = scalars(time, "error_head")
        m.d.comb += [
            share.mixed_valid.eq(now.row & now.key & now.log), share.mixed_index.eq(now.index),
            share.mixed[0].eq(readout.o), share.mixed[1].eq(readout.r),
            share.valid.eq(early.row & early.value & early.log), share.index.eq(early.index),
            *(a.eq(b) for a, b in zip(share.codes, readout.codes, strict=True)),
            *(a.eq(b) for a, b in zip(share.scales, readout.scales, strict=True)),
            share.drain.eq(backlog.drain), *(a.eq(b) for a, b in zip(backlog.shares, share.shares, strict=True)),
            backlog.valid.eq(of_state & now.log), backlog.begins.eq(now.row & now.first & now.log),
            backlog.head.eq(at_error), backlog.closing.eq(late.row & late.last & late.log),
            backlog.products.o.eq(readout.o), backlog.products.r.eq(readout.r), backlog.products.v.eq(v),
        ]
        direct_swap = before.row & before.first & ~before.log & ~before.commit
        from_log = Signal()
        with m.If(backlog.swap | direct_swap):
            m.d.sync += from_log.eq(backlog.swap)
        m.d.comb += [
            error.valid.eq((of_state & ~now.log) | backlog.sums_valid), error.swap.eq(direct_swap | backlog.swap),
            error.v.eq(Mux(from_log, backlog.sums.v, v)), error.r.eq(Mux(from_log, backlog.sums.r, readout.r)),
            error.o_rows.eq(Mux(from_log, backlog.sums.o, readout.o)),
            error.head.eq(Mux(from_log, backlog.sums_head.as_value(), at_error.as_value())),
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

    def _updates(self, m: Module, flags: list[Any], scalars: Scalars) -> None:
        """Rows with the token, or with the log, added, and their scales."""
        g, gain, fold, update, choose = self.geometry, self.gain, self.fold, self.update, self.choose
        at_gain, at_update, at_choose = (
            scalars(time, name) for time, name in (
                (self._gain_time, "gain_head"), (self._update_time, "update_head"), (self._choose_time, "choose_head")))
        scales: Value = self._delay(m, Value.cast(self.row.scales), 0, self._gain_time, "scales")
        now, before = flags[self._gain_time], flags[self._gain_time - 1]
        state = now.row & ~now.key & ~now.value & ~now.load
        m.d.comb += [
            gain.valid.eq(now.row), gain.d.eq(self.error.d), gain.swap.eq(before.row & before.first),
            gain.octaves.eq(at_gain.octaves), gain.shift.eq(at_gain.mode.shift),
            *(a.eq(b) for a, b in zip(gain.key, self.key.scales, strict=True)),
            Cat(s.as_value() for s in gain.scales).eq(scales),
            fold.valid.eq(state & now.commit), fold.key_valid.eq(now.row & now.key & now.commit),
            fold.swap.eq(gain.swap), fold.octaves.eq(at_gain.octaves), fold.shift.eq(at_gain.mode.shift),
            Cat(s.as_value() for s in fold.scales).eq(scales),
        ]
        early, loads = flags[ENTRY], flags[LOAD]
        m.d.comb += [
            fold.value_en.eq(early.row & early.value & early.commit), fold.index.eq(early.index),
            *(a.eq(b) for a, b in zip(fold.codes, self.readout.codes, strict=True)),
            *(a.eq(b) for a, b in zip(fold.value_scales, self.readout.scales, strict=True)),
            fold.key_en.eq(loads.row & loads.load), fold.key_index.eq(loads.index),
            Cat(s.as_value() for s in fold.key_scales).eq(
                self._delay(m, Value.cast(self.row.scales), 0, LOAD, "key_scales")),
            fold.sweep.eq(loads.sweep), fold.swept.eq(loads.index), fold.sweep_last.eq(loads.sweep_last),
            fold.channel.eq(self._delay(m, self.swept, 0, LOAD, "swept")),
        ]

        assert gain.latency == gain.raised_latency + update.gain_lead
        # a key is let go before the next head's scales meet the next key
        assert gain.raised_latency + update.gain_lead < MIN_ROWS
        codes = self._delay(m, Cat(Value.cast(self.row.high), Value.cast(self.row.low)), 0, self._update_time, "codes")
        now, before = flags[self._update_time], flags[self._update_time - 1]
        taking, multiplying = flags[self._update_time + 1], flags[self._update_time + update.gain_lead]
        m.d.comb += [
            Cat(*update.high, *update.low).eq(codes),
            update.valid.eq(now.row), update.swap.eq(before.row & before.first),
            update.entry.eq(now.key & now.commit), update.bare.eq(now.commit),
            update.feedback.eq(at_update.mode.feedback),
            update.key.eq(self.key),
            self.key_taken.eq(update.key_taken & ~taking.log & ~taking.commit),
            *(a.eq(Mux(now.commit, c, b)) for a, b, c in zip(update.fall, gain.fall, fold.fall, strict=True)),
            *(a.eq(Mux(multiplying.commit, c, b)) for a, b, c in zip(update.gain, gain.gain, fold.gain, strict=True)),
        ]

        # what a row of the state brings stays until the keys that are added to it are over
        working: Value = Mux(now.commit, Cat(*fold.exponent, *fold.raised), Cat(*gain.exponent, *gain.raised))
        brought: Value = Cat(self._delay(m, scales, self._gain_time, self._choose_time, "held_scales"),
                      self._delay(m, working, self._update_time, self._choose_time, "working"))
        now, before = flags[self._choose_time], flags[self._choose_time - 1]
        kept = Signal(len(brought), reset_less=True)
        with m.If(now.row & ~now.key):
            m.d.sync += kept.eq(brought)
        brought = Mux(now.key, kept, brought)
        scale_bits = len(scales)
        m.d.comb += [
            choose.valid.eq(now.ends), choose.swap.eq(before.row & before.first), choose.mode.eq(at_choose.mode),
            *(a.eq(b) for a, b in zip(choose.lanes, update.lanes, strict=True)),
            Cat(*choose.exponent, *choose.raised).eq(brought[scale_bits:]),
            Cat(s.as_value() for s in choose.supplied).eq(self._delay(
                m, Cat(s.as_value() for s in self.supplied), 0, self._choose_time, "supplied")),
        ]
        for i, scale in enumerate(data.ArrayLayout(SCALE, g.groups)(brought[:scale_bits])):
            m.d.comb += [choose.mantissa[i].eq(scale.mantissa), choose.sign[i].eq(scale.sign)]

    def _writes(self, m: Module, flags: list[Any], scalars: Scalars) -> None:
        """Codes at the chosen scales, and the rows."""
        update, choose, requantise, lfsr = self.update, self.choose, self.requantise, self.lfsr
        lanes_time = self._requantise_time + requantise.lane_lead
        lanes = self._delay(m, Cat(*update.lanes), self._choose_time, lanes_time, "lanes")
        kept = self._delay(m, Cat(*choose.exponent, *choose.mantissa, *choose.sign), self._choose_time,
                           self._requantise_time, "kept")
        at_requantise = scalars(self._requantise_time, "requantise_head")
        now, before, noisy = flags[self._requantise_time], flags[self._requantise_time - 1], flags[self._noise_time - 1]
        m.d.comb += [
            requantise.valid.eq(now.ends),
            requantise.swap.eq(before.row & before.first),
            requantise.mode.eq(at_requantise.mode),
            Cat(*requantise.lanes).eq(lanes),
            Cat(*requantise.exponent, *requantise.mantissa, *requantise.sign).eq(kept),
            *(a.eq(b) for a, b in zip(requantise.scales, choose.scales, strict=True)),
            requantise.noise.eq(lfsr.word),
            lfsr.valid.eq(noisy.ends),
            lfsr.first.eq(noisy.opens),
            lfsr.seed.eq(scalars(self._noise_time - 1, "noise_head").noise),
        ]

        chosen = self._delay(m, Cat(*(s.as_value() for s in choose.scales), *choose.renewed), self._requantise_time,
                             self.latency, "chosen")
        next_noise = self._delay(m, lfsr.next, self._noise_time, self.latency, "next_noise")
        writes = scalars(self.latency, "write_head").write
        now = flags[self.latency]
        m.d.comb += [
            Cat(Value.cast(self.write_row.scales), *self.renewed).eq(chosen),
            Cat(Value.cast(self.write_row.high), Value.cast(self.write_row.low)).eq(
                Cat(*requantise.high, *requantise.low)),
            self.write_valid.eq(now.ends & writes),
            self.written.eq(now.row & now.last & ~now.log),
            self.noise.eq(next_noise),
        ]

    def _read(self, m: Module, flags: list[Any], head: Any) -> None:
        """Registers of the row's 8-bit codes, in front of the read-out, and what is further taken from its products."""
        readout, mode, here = self.readout, self.head.mode, flags[0]
        wiring.connect(m, wiring.flipped(self.load), readout.load)
        swap = here.row & here.first & ~here.commit
        m.d.comb += [
            readout.valid.eq(flags[ENTRY].row),
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
            m.d.comb += code.eq(held)
        for i, scale in enumerate(readout.scales):
            entered = Signal(SCALE, name=f"entered_scale_{i}", reset_less=True)
            with m.If(here.row):
                m.d.sync += entered.eq(self.row.scales[i])
            m.d.comb += scale.eq(entered)
        age, is_key = Signal(LOST_BITS, reset_less=True), flags[LOAD].key
        shifts = [Signal.like(head.mode.shift, name=f"shift_{i}", reset_less=True) for i in range(2)]
        m.d.sync += [age.eq(Mux(of_state, 0, self.age)), shifts[0].eq(head.mode.shift), shifts[1].eq(shifts[0])]
        for vector, fall in enumerate(readout.falls):
            below = Signal(LOST_BITS, name=f"below_{vector}", reset_less=True)
            short = Signal(BELOW_BITS, name=f"short_{vector}", reset_less=True)
            m.d.sync += [below.eq(head.lost[vector] - age), short.eq(least(below, formats.LOST_MAX))]
            m.d.comb += fall.eq(short + Mux(is_key, shifts[1] + KEY_FALL, 0))
            if vector == 1:
                m.d.comb += self.fold.below.eq(short)
        assert ENTRY + readout.fall_lead == LOAD

    def _flags(self, m: Module) -> list[Any]:
        """What a cycle brings, at each stage."""
        flags: list[Any] = [self.flags]
        for stage in range(1, self.latency + 1):
            after: Any = Signal(FLAGS, name=f"flags_{stage}")
            m.d.sync += after.eq(flags[-1])
            flags.append(after)
        return flags

    def _delay(self, m: Module, value: Value, start: int, end: int, name: str) -> Value:
        """What a row has at time ``start``, at ``end``."""
        m.submodules[f"{name}_line"] = line = DelayLine(len(value), end - start)
        m.d.comb += line.i.eq(value)
        return line.o
