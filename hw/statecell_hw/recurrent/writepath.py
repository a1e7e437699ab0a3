"""Write path: rows of the state with what is added to them in, one a cycle; rows to write back out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import Multiplier
from statecell_hw.layouts import SCALE
from statecell_hw.recurrent.choose import Choose
from statecell_hw.recurrent.delay import delayed
from statecell_hw.recurrent.fold import Fold
from statecell_hw.recurrent.gain import Gain
from statecell_hw.recurrent.noise import Noise
from statecell_hw.recurrent.operands import BELOW_BITS, HEAD, WIDE_BITS, key_layout, state_row
from statecell_hw.recurrent.pipeline import MIN_ROWS, Handover
from statecell_hw.recurrent.readpath import ENTRY, LOAD
from statecell_hw.recurrent.requantise import Requantise
from statecell_hw.recurrent.update import Update
from statecell_hw.recurrent.walk import FLAGS, stages

Scalars = Callable[[int, str], Any]
"""A head's operands at a time, with a name for their registers."""


class WritePath(wiring.Component):
    """Update and re-quantisation of rows; docs/numerics.md, 8.4 to 8.7.

    ``flags``, ``row``, ``swept``, ``supplied``, ``key`` and ``key_taken`` as of :class:`RecurrentPath`. ``head`` is
    that of the rows from the cycle after a ``first`` row on and must hold for MIN_ROWS cycles. ``d`` (RECUR_BITS,
    RECUR_FRACTION) comes ``d_time`` cycles after its row; of the rows of a log that a commit loads ``codes`` and
    ``scales`` ENTRY and ``below`` LOAD cycles after the row, as :class:`ReadPath` gives them.

    ``write_valid`` comes ``latency`` cycles after the row that ends an update, for heads that write, with ``write_row``
    and ``renewed``, the groups that took a new scale where it is held; ``written`` at that time for the last row of a
    pass without log, with ``noise``, the register that the head's next token begins with if this one writes. Interval
    1. Reset drops the rows inside.
    """

    flags: Any
    row: Any
    swept: Signal
    supplied: Any
    head: Any
    key: Any
    key_taken: Signal
    d: Signal
    codes: list[Signal]
    scales: Any
    below: Signal
    write_valid: Signal
    write_row: Any
    written: Signal
    renewed: list[Signal]
    noise: Signal

    def __init__(self, geometry: Geometry, *, d_time: int, multiplier: Multiplier = "native") -> None:
        self.geometry = g = geometry
        self.d_time = d_time
        self.gain, self.update = Gain(g), Update(g, multiplier=multiplier)
        self.choose, self.requantise, self.lfsr = Choose(g), Requantise(g), Noise()
        self.fold = Fold(g, lead=self._gain_time + 1 - LOAD, raised_latency=self.gain.raised_latency,
                         latency=self.gain.raised_latency + self.update.gain_lead)
        super().__init__({
            "flags": In(FLAGS),
            "row": In(state_row(g)),
            "swept": In(range(g.head_dim)),
            "supplied": In(SCALE).array(g.groups),
            "head": In(HEAD),
            "key": In(key_layout(g)),
            "key_taken": Out(1),
            "d": In(signed(formats.RECUR_BITS)),
            "codes": In(signed(WIDE_BITS)).array(g.head_dim),
            "scales": In(SCALE).array(g.groups),
            "below": In(BELOW_BITS),
            "write_valid": Out(1),
            "write_row": Out(state_row(g)),
            "written": Out(1),
            "renewed": Out(1).array(g.groups),
            "noise": Out(formats.LFSR_BITS),
        })

    # -- times, in cycles after a row's ``valid`` ----------------------------------------------------------------------
    @property
    def _gain_time(self) -> int:
        return self.d_time - self.gain.lead

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
    def latency(self) -> int:
        """Cycles from a row to the row written back."""
        return self._requantise_time + self.requantise.latency

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        for name in ("gain", "update", "choose", "requantise", "lfsr", "fold"):
            m.submodules[name] = getattr(self, name)
        flags = stages(m, self.flags, self.latency)
        handover = Handover(m, self.flags.row & self.flags.first)

        def scalars(time: int, name: str) -> Any:
            return HEAD(handover.at(time - ENTRY, self.head.as_value(), name))

        scales = delayed(m, Value.cast(self.row.scales), self._gain_time, "scales")
        self._gains(m, flags, scalars, scales)
        self._updates(m, flags, scalars)
        self._scales(m, flags, scalars, scales)
        self._writes(m, flags, scalars)
        return m

    def _gains(self, m: Module, flags: list[Any], scalars: Scalars, scales: Value) -> None:
        """What multiplies the token's key, or the keys of a log."""
        gain, fold = self.gain, self.fold
        head = scalars(self._gain_time, "gain_head")
        now, before = flags[self._gain_time], flags[self._gain_time - 1]
        state = now.row & ~now.key & ~now.value & ~now.load
        m.d.comb += [
            gain.valid.eq(now.row), gain.half.eq(now.half), gain.d.eq(self.d), gain.swap.eq(before.row & before.first),
            gain.octaves.eq(head.octaves), gain.shift.eq(head.mode.shift),
            *(a.eq(b) for half, scales in zip(gain.key, self.key.scales, strict=True)
              for a, b in zip(half, scales, strict=True)),
            Cat(s.as_value() for s in gain.scales).eq(scales),
            fold.valid.eq(state & now.commit), fold.key_valid.eq(now.row & now.key & now.commit),
            fold.swap.eq(gain.swap), fold.octaves.eq(head.octaves), fold.shift.eq(head.mode.shift),
            Cat(s.as_value() for s in fold.scales).eq(scales),
        ]
        early, loads = flags[ENTRY], flags[LOAD]
        m.d.comb += [
            fold.value_en.eq(early.row & early.value & early.commit), fold.index.eq(early.index),
            *(a.eq(b) for a, b in zip(fold.codes, self.codes, strict=True)),
            *(a.eq(b) for a, b in zip(fold.value_scales, self.scales, strict=True)),
            fold.key_en.eq(loads.row & loads.load), fold.key_index.eq(loads.index), fold.below.eq(self.below),
            Cat(s.as_value() for s in fold.key_scales).eq(
                delayed(m, Value.cast(self.row.scales), LOAD, "key_scales")),
            fold.sweep.eq(loads.sweep), fold.swept.eq(loads.index), fold.sweep_last.eq(loads.sweep_last),
            fold.channel.eq(delayed(m, self.swept, LOAD, "swept")),
        ]

    def _updates(self, m: Module, flags: list[Any], scalars: Scalars) -> None:
        """Rows with the token, or with the log, added."""
        gain, fold, update = self.gain, self.fold, self.update
        assert gain.latency == gain.raised_latency + update.gain_lead
        # a key is let go before the next head's scales meet the next key
        assert gain.raised_latency + update.gain_lead < MIN_ROWS
        codes = delayed(m, Cat(Value.cast(self.row.high), Value.cast(self.row.low)), self._update_time, "codes")
        now, before = flags[self._update_time], flags[self._update_time - 1]
        taking, multiplying = flags[self._update_time + 1], flags[self._update_time + update.gain_lead]
        m.d.comb += [
            Cat(*update.high, *update.low).eq(codes),
            update.valid.eq(now.row), update.swap.eq(before.row & before.first),
            update.entry.eq(now.key & now.commit), update.half.eq(now.half), update.bare.eq(now.commit),
            update.feedback.eq(scalars(self._update_time, "update_head").mode.feedback),
            update.key.eq(self.key),
            self.key_taken.eq(update.key_taken & ~taking.log & ~taking.commit),
            *(a.eq(Mux(now.commit, c, b)) for a, b, c in zip(update.fall, gain.fall, fold.fall, strict=True)),
            *(a.eq(Mux(multiplying.commit, c, b)) for a, b, c in zip(update.gain, gain.gain, fold.gain, strict=True)),
        ]

    def _scales(self, m: Module, flags: list[Any], scalars: Scalars, scales: Value) -> None:
        """Scales of the updated rows; what a row of the state brings stays until the keys that are added to it are
        over.
        """
        gain, fold, choose, groups = self.gain, self.fold, self.choose, self.geometry.groups
        commits = flags[self._update_time].commit
        working: Value = Mux(commits, Cat(*fold.exponent, *fold.raised), Cat(*gain.exponent, *gain.raised))
        brought: Value = Cat(delayed(m, scales, self._choose_time - self._gain_time, "held_scales"),
                             delayed(m, working, self._choose_time - self._update_time, "working"))
        now, before = flags[self._choose_time], flags[self._choose_time - 1]
        kept = Signal(len(brought), reset_less=True)
        with m.If(now.row & ~now.key):
            m.d.sync += kept.eq(brought)
        brought = Mux(now.key, kept, brought)
        scale_bits = len(scales)
        m.d.comb += [
            choose.valid.eq(now.ends), choose.swap.eq(before.row & before.first),
            choose.mode.eq(scalars(self._choose_time, "choose_head").mode),
            *(a.eq(b) for a, b in zip(choose.lanes, self.update.lanes, strict=True)),
            Cat(*choose.exponent, *choose.raised).eq(brought[scale_bits:]),
            Cat(s.as_value() for s in choose.supplied).eq(delayed(
                m, Cat(s.as_value() for s in self.supplied), self._choose_time, "supplied")),
        ]
        for i, scale in enumerate(data.ArrayLayout(SCALE, groups)(brought[:scale_bits])):
            m.d.comb += [choose.mantissa[i].eq(scale.mantissa), choose.sign[i].eq(scale.sign)]

    def _writes(self, m: Module, flags: list[Any], scalars: Scalars) -> None:
        """Codes at the chosen scales, and the rows."""
        update, choose, requantise, lfsr = self.update, self.choose, self.requantise, self.lfsr
        time = self._requantise_time
        lanes = delayed(m, Cat(*update.lanes), time + requantise.lane_lead - self._choose_time, "lanes")
        kept = delayed(m, Cat(*choose.exponent, *choose.mantissa, *choose.sign), time - self._choose_time, "kept")
        now, before, noisy = flags[time], flags[time - 1], flags[self._noise_time - 1]
        m.d.comb += [
            requantise.valid.eq(now.ends),
            requantise.swap.eq(before.row & before.first),
            requantise.mode.eq(scalars(time, "requantise_head").mode),
            Cat(*requantise.lanes).eq(lanes),
            Cat(*requantise.exponent, *requantise.mantissa, *requantise.sign).eq(kept),
            *(a.eq(b) for a, b in zip(requantise.scales, choose.scales, strict=True)),
            requantise.noise.eq(lfsr.word),
            lfsr.valid.eq(noisy.ends),
            lfsr.first.eq(noisy.opens),
            lfsr.seed.eq(scalars(self._noise_time - 1, "noise_head").noise),
        ]
        chosen = delayed(m, Cat(*(s.as_value() for s in choose.scales), *choose.renewed), self.latency - time, "chosen")
        next_noise = delayed(m, lfsr.next, self.latency - self._noise_time, "next_noise")
        ended = flags[self.latency]
        m.d.comb += [
            Cat(Value.cast(self.write_row.scales), *self.renewed).eq(chosen),
            Cat(Value.cast(self.write_row.high), Value.cast(self.write_row.low)).eq(
                Cat(*requantise.high, *requantise.low)),
            self.write_valid.eq(ended.ends & scalars(self.latency, "write_head").write),
            self.written.eq(ended.row & ended.last & ~ended.log),
            self.noise.eq(next_noise),
        ]
