"""Walk over the rows of passes, one channel a cycle, head after head."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.recurrent.operands import HALVES, channel_limit, pass_layout

FLIGHTS = 4
"""Passes whose rows have begun and are not all written."""


class Phase(enum.Enum, shape=3):
    """What is read: for a token the rows of the state, in the log's mode between the logged keys and values; for a
    commit values and keys of the log, then a sweep over it without rows, and for each channel its row and the keys.
    """

    STATE = 0
    KEYS = 1
    VALUES = 2
    LOAD_VALUES = 3
    LOAD_KEYS = 4
    SWEEP = 5
    ROW = 6
    FOLD = 7


FLAGS = data.StructLayout({
    "row": 1, "first": 1, "last": 1, "second": 1, "wide": 1, "log": 1, "commit": 1, "key": 1, "load": 1, "value": 1,
    "ends": 1, "opens": 1, "sweep": 1, "sweep_last": 1, "halves": 1, "half": 1, "index": range(formats.LOG_MAX),
})
"""What a cycle of a walk brings. ``row``: a row is read, ``first`` or ``last`` of its pass, in two planes if ``wide``,
else in the ``second`` bank or in the first; ``log``, ``commit``: of such a pass. The row is a logged ``key``, one that
is ``load``-ed for a commit, or a logged ``value``, of token ``index``, or else one of the state. ``ends``: after it the
state's row is written; ``opens``: that is the first of the pass. ``sweep``: token ``index`` of the channel that is
swept, ``sweep_last`` of them. ``halves``: a channel has two rows, in adjacent cycles; ``half``: it is the second.
"""


def stages(m: Module, flags: Any, last: int) -> list[Any]:
    """``flags``, as FLAGS, in each cycle from now on to ``last`` cycles later."""
    shown: list[Any] = [flags]
    for stage in range(1, last + 1):
        after: Any = Signal(FLAGS, name=f"flags_{stage}")
        m.d.sync += after.eq(shown[-1])
        shown.append(after)
    return shown


class Walk(wiring.Component):
    """Rows of the passes that come on ``i``, in the order of their channels.

    A pass is taken with the last row of the one before, or so that ``gap`` idle cycles lie between them, if ``allowed``
    and if no pass over the same slot, none of another kind (token written at once, the same with keys of two halves,
    token of a log, commit) and fewer than FLIGHTS others are under way; its first row follows in the next cycle.
    ``landed`` says that the oldest pass has written its last row; its slot is ``landing``. The noise register of the
    slot ``looks`` is on ``noise`` a cycle later; it may change only with ``landed``.

    ``flags``: what is read for ``current``, which stands until the next pass begins: see FLAGS. ``address`` in both
    banks, ``fetch`` where they are read: with one plane two rows of the state, of a channel and the next or of both
    halves, have one address, the second, ``odd`` one in the value bank, and tokens read it once. ``home`` is the
    address of the last row of the state, of ``channel``; ``swept`` the channel that is swept. ``log_row``: first row of
    the log. ``noise_now``: the register of ``current``. Reset forgets all passes.
    """

    i: stream.Interface
    allowed: Signal
    landed: Signal
    landing: Signal
    looks: Signal
    noise: Signal
    noise_now: Signal
    flags: Any
    fetch: Signal
    channel: Signal
    odd: Signal
    swept: Signal
    address: Signal
    home: Signal
    log_row: Signal
    current: Any
    busy: Signal

    def __init__(self, geometry: Geometry, *, slots: int, gap: int) -> None:
        self.geometry = g = geometry
        self.gap = gap
        self.slots = slots
        super().__init__({
            "i": In(stream.Signature(pass_layout(g, slots))),
            "allowed": In(1),
            "landed": In(1),
            "landing": Out(range(slots)),
            "looks": Out(range(slots)),
            "noise": In(formats.LFSR_BITS),
            "noise_now": Out(formats.LFSR_BITS),
            "flags": Out(FLAGS),
            "fetch": Out(1),
            "channel": Out(range(channel_limit(g))),
            "odd": Out(1),
            "swept": Out(range(g.head_dim)),
            "address": Out(range(g.rows)),
            "home": Out(range(g.rows)),
            "log_row": Out(range(g.rows)),
            "current": Out(pass_layout(g, slots)),
            "busy": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        running, begins, fit, conflict = Signal(), Signal(), Signal(), Signal()
        waits = Signal(range(self.gap + 1))
        flights: list[Any] = [Signal(data.StructLayout({"busy": 1, "slot": range(self.slots)}), name=f"flight_{i}")
                              for i in range(FLIGHTS)]
        newest, oldest = Signal(range(FLIGHTS)), Signal(range(FLIGHTS))
        held = Signal(range(FLIGHTS + 1))
        config, given, flags = self.current.config, self.i.payload, self.flags
        phase, first, kind = Signal(Phase), Signal(), Signal(3)
        half, halves = Signal(), config.halves
        index, ended, row = Signal(range(formats.LOG_MAX)), Signal(), Signal(range(self.geometry.rows))
        wide = config.mode.wide
        last_entry, last_channel = Signal(), Signal()
        place = Signal(range(HALVES * channel_limit(self.geometry)))  # of the row among those of the state
        free = ~running | (flags.last & (self.gap == 0))
        new_kind = Cat(given.head.log, given.head.commit, given.config.halves)
        kept = Signal(range(self.geometry.rows))
        of_state = (phase == Phase.STATE) | (phase == Phase.ROW)
        of_values = (phase == Phase.VALUES) | (phase == Phase.LOAD_VALUES)
        logged = given.entries != 0
        m.d.comb += [
            conflict.eq(Cat(f.busy & (f.slot == given.slot) for f in flights).any()),
            begins.eq(self.i.valid & fit & free & (waits == 0) & (held != FLIGHTS) & self.allowed),
            self.i.ready.eq(begins),
            self.looks.eq(given.slot),
            self.busy.eq(running | (held != 0)),
            last_entry.eq(index + 1 == self.current.entries),
            last_channel.eq((self.channel == config.channels - 1) & (half | ~halves)),
            place.eq(Mux(halves, Cat(half, self.channel), self.channel)), self.odd.eq(place[0]),
            row.eq(config.base + Mux(wide, place, place >> 1)),
            self.log_row.eq(config.base + Mux(wide, config.channels, config.channels >> 1)),
            self.address.eq(Mux(of_state, row, self.log_row + index + Mux(of_values, config.interval, 0))),
            self.home.eq(Mux(of_state, row, kept)),
            self.fetch.eq(running & (phase != Phase.SWEEP) & ((phase != Phase.STATE) | wide | ~self.odd)),
            self.swept.eq(Mux(phase == Phase.FOLD, self.channel + 1, 0)),
            flags.row.eq(running & (phase != Phase.SWEEP)), flags.first.eq(running & first),
            flags.last.eq(running & ended), flags.second.eq(of_state & self.odd & ~wide),
            flags.wide.eq(wide | ~of_state), flags.log.eq(self.current.head.log),
            flags.commit.eq(self.current.head.commit), flags.key.eq((phase == Phase.KEYS) | (phase == Phase.FOLD)),
            flags.load.eq(phase == Phase.LOAD_KEYS), flags.value.eq(of_values), flags.index.eq(index),
            flags.ends.eq(running & Mux(
                self.current.head.commit, (phase == Phase.FOLD) & last_entry, ~self.current.head.log)),
            flags.opens.eq(flags.ends & (self.channel == 0) & ~half),
            flags.halves.eq(running & halves), flags.half.eq(running & half),
            flags.sweep.eq(running & ((phase == Phase.SWEEP) | ((phase == Phase.FOLD) & ~last_channel))),
            flags.sweep_last.eq(last_entry),
        ]
        # the noise register of the pass on offer was read in the cycle before, after what the pass before wrote
        m.d.sync += [
            fit.eq(self.i.valid & ~conflict & ~begins & ((held == 0) | (kind == new_kind))),
            held.eq(held + begins - self.landed),
        ]
        with m.If(running):
            m.d.sync += first.eq(0)
            with m.If(of_state):
                m.d.sync += kept.eq(row)

        def through(phase_now: Phase, following: Phase) -> None:
            """One token of the log a cycle, then another phase."""
            with m.Case(phase_now):
                m.d.sync += index.eq(index + 1)
                with m.If(last_entry):
                    m.d.sync += [index.eq(0), phase.eq(following)]

        with m.If(running), m.Switch(phase):
            with m.Case(Phase.STATE):
                m.d.sync += [half.eq(halves & ~half), self.channel.eq(self.channel + (half | ~halves))]
                logs = self.current.head.log & (self.current.entries != 0)
                m.d.comb += ended.eq(last_channel & ~logs)
                with m.If(last_channel):
                    m.d.sync += phase.eq(Phase.VALUES)
            through(Phase.KEYS, Phase.STATE)
            with m.Case(Phase.VALUES):
                m.d.sync += index.eq(index + 1)
                m.d.comb += ended.eq(last_entry)
            through(Phase.LOAD_VALUES, Phase.LOAD_KEYS)
            through(Phase.LOAD_KEYS, Phase.SWEEP)
            through(Phase.SWEEP, Phase.ROW)
            with m.Case(Phase.ROW):
                m.d.sync += phase.eq(Phase.FOLD)
            with m.Case(Phase.FOLD):
                m.d.sync += index.eq(index + 1)
                m.d.comb += ended.eq(last_entry & last_channel)
                with m.If(last_entry):
                    m.d.sync += [index.eq(0), phase.eq(Phase.ROW), self.channel.eq(self.channel + 1)]
        with m.If(flags.last):
            m.d.sync += [running.eq(0), waits.eq(max(0, self.gap - 1))]
        with m.Elif(waits != 0):
            m.d.sync += waits.eq(waits - 1)
        with m.If(begins):
            m.d.sync += [
                running.eq(1), self.channel.eq(0), half.eq(0), self.current.eq(given), self.noise_now.eq(self.noise),
                newest.eq(newest + 1), first.eq(1), kind.eq(new_kind), index.eq(0),
                phase.eq(Mux(given.head.commit, Phase.LOAD_VALUES,
                             Mux(given.head.log & logged, Phase.KEYS, Phase.STATE))),
            ]
        with m.If(self.landed):
            m.d.sync += oldest.eq(oldest + 1)
        for number, flight in enumerate(flights):
            with m.If(begins & (newest == number)):
                m.d.sync += [flight.busy.eq(1), flight.slot.eq(self.i.payload.slot)]
            with m.If(self.landed & (oldest == number)):
                m.d.sync += flight.busy.eq(0)
            with m.If(oldest == number):
                m.d.comb += self.landing.eq(flight.slot)
        return m
