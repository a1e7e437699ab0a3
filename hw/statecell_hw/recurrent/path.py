"""Recurrent path: state rows of many heads in, one a cycle; outputs and rows to write back out."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import Multiplier
from statecell_hw.layouts import SCALE, QueryLoad
from statecell_hw.recurrent.choose import Choose
from statecell_hw.recurrent.delay import DelayLine
from statecell_hw.recurrent.error import Error
from statecell_hw.recurrent.gain import Gain
from statecell_hw.recurrent.noise import Noise
from statecell_hw.recurrent.operands import HEAD, WIDE_BITS, key_layout
from statecell_hw.recurrent.pipeline import MIN_ROWS, Handover
from statecell_hw.recurrent.readout import VECTORS, Readout, vector_geometry
from statecell_hw.recurrent.requantise import Requantise
from statecell_hw.recurrent.update import Update

ENTRY = 1
"""Cycles from the ports to the read-out: 8-bit codes of both planes."""


def state_row(geometry: Geometry) -> data.StructLayout:
    """One value channel's row: nibbles of both planes (``low`` is 0 with one plane) and a scale per group."""
    nibbles = data.ArrayLayout(signed(formats.CODE_BITS), geometry.head_dim)
    return data.StructLayout({"high": nibbles, "low": nibbles, "scales": data.ArrayLayout(SCALE, geometry.groups)})


class RecurrentPath(wiring.Component):
    """The recurrent step on rows; docs/numerics.md, 8.3 to 8.5 and 8.7, written back at every token.

    ``row`` comes with ``valid``, with its value ``v`` and, for supplied scales, ``supplied``; ``first`` and ``last``
    mark a head's rows, which are MIN_ROWS or more, with any gaps. ``o_valid`` comes ``o_latency`` cycles later with
    ``o`` (RECUR_BITS, RECUR_FRACTION), ``o_last`` with that of the ``last`` row; ``write_valid`` after ``latency``
    cycles, for heads that write, with ``write_row`` and ``renewed``, the groups that took a new scale where it is held;
    ``written`` at that time for every head's last row, with ``noise``, the register that the head's next token begins
    with if this one writes. Interval 1, and ``gap`` idle cycles between the rows of two heads.

    Operands: ``load`` (of :class:`Dot`) fills the vectors, ``full`` shows them; ``head`` must be right in the cycle of
    a ``first`` row; ``key`` is that of the oldest head whose ``key_taken`` has not come, and must stand from the cycle
    of its ``first`` row until then. Reset drops the rows inside.
    """

    valid: Signal
    first: Signal
    last: Signal
    row: Any
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
        super().__init__({
            "valid": In(1),
            "first": In(1),
            "last": In(1),
            "row": In(state_row(g)),
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
    def latency(self) -> int:
        """Cycles from a row to the row written back."""
        return self._requantise_time + self.requantise.latency

    @property
    def gap(self) -> int:
        """Fewest idle cycles between the rows of two heads."""
        return max(self.readout.gap, self.update.gap)

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        for name in ("readout", "error", "gain", "update", "choose", "requantise", "lfsr"):
            m.submodules[name] = getattr(self, name)
        valid = self._flags(m, self.valid, "valid", self.latency)
        first = self._flags(m, self.valid & self.first, "first", self._noise_time)
        last = self._flags(m, self.valid & self.last, "last", self.latency)
        # the first row's own strobe is that of the cycle before it reaches the read-out
        handover = Handover(m, first[0])
        entered: Any = Signal(HEAD, name="entered", reset_less=True)
        with m.If(first[0]):
            m.d.sync += entered.eq(self.head)

        def scalars(time: int, name: str) -> Any:
            return HEAD(handover.at(time - ENTRY, entered.as_value(), name))

        self._read(m, valid, first[0], entered)
        error, gain, update, choose = self.error, self.gain, self.update, self.choose
        requantise, lfsr = self.requantise, self.lfsr
        m.d.comb += [
            error.valid.eq(valid[self._error_time]),
            error.v.eq(self._delay(m, self.v, 0, self._error_time, "v")),
            error.r.eq(self.readout.r),
            error.o_rows.eq(self.readout.o),
            error.swap.eq(first[self._error_time - 1]),
            error.head.eq(scalars(self._error_time, "error_head")),
            self.o.eq(error.o),
            self.o_valid.eq(valid[self.o_latency]),
            self.o_last.eq(last[self.o_latency]),
        ]

        at_gain, at_update, at_choose = (
            scalars(time, name) for time, name in (
                (self._gain_time, "gain_head"), (self._update_time, "update_head"), (self._choose_time, "choose_head")))
        m.d.comb += [
            gain.valid.eq(valid[self._gain_time]),
            gain.d.eq(error.d),
            gain.swap.eq(first[self._gain_time - 1]),
            gain.octaves.eq(at_gain.octaves),
            gain.shift.eq(at_gain.mode.shift),
            *(a.eq(b) for a, b in zip(gain.key, self.key.scales, strict=True)),
        ]
        scales: Value = self._delay(m, Value.cast(self.row.scales), 0, self._gain_time, "scales")
        m.d.comb += Cat(s.as_value() for s in gain.scales).eq(scales)

        assert gain.latency == gain.raised_latency + update.gain_lead
        # a key is let go before the next head's scales meet the next key
        assert gain.raised_latency + update.gain_lead < MIN_ROWS
        codes = self._delay(m, Cat(Value.cast(self.row.high), Value.cast(self.row.low)), 0, self._update_time, "codes")
        m.d.comb += [
            Cat(*update.high, *update.low).eq(codes),
            update.valid.eq(valid[self._update_time]),
            update.swap.eq(first[self._update_time - 1]),
            update.feedback.eq(at_update.mode.feedback),
            update.key.eq(self.key),
            self.key_taken.eq(update.key_taken),
            *(a.eq(b) for a, b in zip(update.fall, gain.fall, strict=True)),
            *(a.eq(b) for a, b in zip(update.gain, gain.gain, strict=True)),
        ]

        scales = self._delay(m, scales, self._gain_time, self._choose_time, "held_scales")
        working = self._delay(m, Cat(*gain.exponent, *gain.raised), self._update_time, self._choose_time, "working")
        m.d.comb += [
            choose.valid.eq(valid[self._choose_time]),
            choose.swap.eq(first[self._choose_time - 1]),
            choose.mode.eq(at_choose.mode),
            *(a.eq(b) for a, b in zip(choose.lanes, update.lanes, strict=True)),
            Cat(*choose.exponent, *choose.raised).eq(working),
            Cat(s.as_value() for s in choose.supplied).eq(self._delay(
                m, Cat(s.as_value() for s in self.supplied), 0, self._choose_time, "supplied")),
        ]
        for i, scale in enumerate(data.ArrayLayout(SCALE, g.groups)(scales)):
            m.d.comb += [choose.mantissa[i].eq(scale.mantissa), choose.sign[i].eq(scale.sign)]

        lanes_time = self._requantise_time + requantise.lane_lead
        lanes = self._delay(m, Cat(*update.lanes), self._choose_time, lanes_time, "lanes")
        kept = self._delay(m, Cat(*choose.exponent, *choose.mantissa, *choose.sign), self._choose_time,
                           self._requantise_time, "kept")
        at_requantise = scalars(self._requantise_time, "requantise_head")
        m.d.comb += [
            requantise.valid.eq(valid[self._requantise_time]),
            requantise.swap.eq(first[self._requantise_time - 1]),
            requantise.mode.eq(at_requantise.mode),
            Cat(*requantise.lanes).eq(lanes),
            Cat(*requantise.exponent, *requantise.mantissa, *requantise.sign).eq(kept),
            *(a.eq(b) for a, b in zip(requantise.scales, choose.scales, strict=True)),
            requantise.noise.eq(lfsr.word),
            lfsr.valid.eq(valid[self._noise_time - 1]),
            lfsr.first.eq(first[self._noise_time - 1]),
            lfsr.seed.eq(scalars(self._noise_time - 1, "noise_head").noise),
        ]

        chosen = self._delay(m, Cat(*(s.as_value() for s in choose.scales), *choose.renewed), self._requantise_time,
                             self.latency, "chosen")
        next_noise = self._delay(m, lfsr.next, self._noise_time, self.latency, "next_noise")
        writes = scalars(self.latency, "write_head").write
        m.d.comb += [
            Cat(Value.cast(self.write_row.scales), *self.renewed).eq(chosen),
            Cat(Value.cast(self.write_row.high), Value.cast(self.write_row.low)).eq(
                Cat(*requantise.high, *requantise.low)),
            self.write_valid.eq(valid[self.latency] & writes),
            self.written.eq(last[self.latency]),
            self.noise.eq(next_noise),
        ]
        return m

    def _read(self, m: Module, valid: list[Value], swap: Value, head: Any) -> None:
        """Registers of the row's 8-bit codes, in front of the read-out."""
        readout, mode = self.readout, self.head.mode
        wiring.connect(m, wiring.flipped(self.load), readout.load)
        m.d.comb += [
            readout.valid.eq(valid[ENTRY]),
            readout.swap.eq(swap),
            readout.mode.eq(head.mode),
            readout.halved.eq(head.halved),
            self.load_ready.eq(readout.load_ready),
            self.full.eq(readout.full),
        ]
        both = Signal()
        now = Mux(swap, mode.wide & ~mode.blind, head.mode.wide & ~head.mode.blind)
        m.d.comb += both.eq(now)
        for lane, code in enumerate(readout.codes):
            held = Signal(signed(WIDE_BITS), name=f"code_{lane}", reset_less=True)
            low = Mux(both, self.row.low[lane], 0)
            with m.If(self.valid):
                m.d.sync += held.eq(self.row.high[lane].shift_left(formats.CODE_BITS) + low)
            m.d.comb += code.eq(held)
        for i, scale in enumerate(readout.scales):
            entered = Signal(SCALE, name=f"entered_scale_{i}", reset_less=True)
            with m.If(self.valid):
                m.d.sync += entered.eq(self.row.scales[i])
            m.d.comb += scale.eq(entered)

    def _flags(self, m: Module, flag: Value, name: str, until: int) -> list[Value]:
        """A flag at each stage."""
        flags = [flag]
        for stage in range(1, until + 1):
            after = Signal(name=f"{name}_{stage}")
            m.d.sync += after.eq(flags[-1])
            flags.append(after)
        return flags

    def _delay(self, m: Module, value: Value, start: int, end: int, name: str) -> Value:
        """What a row has at time ``start``, at ``end``."""
        m.submodules[f"{name}_line"] = line = DelayLine(len(value), end - start)
        m.d.comb += line.i.eq(value)
        return line.o
