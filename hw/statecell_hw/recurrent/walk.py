"""Walk over the rows of passes, one channel a cycle, head after head."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.recurrent.operands import channel_limit, pass_layout

FLIGHTS = 4
"""Passes whose rows have begun and are not all written."""


class Walk(wiring.Component):
    """Rows of the passes that come on ``i``, in the order of their channels.

    A pass is taken with the last row of the one before, or so that ``gap`` idle cycles lie between them, if ``allowed``
    and if no pass over the same slot and fewer than FLIGHTS others are under way; its first row follows in the next
    cycle. ``landed`` says that the oldest pass has written its last row; its slot is ``landing``. The noise register
    of the slot ``looks`` is on ``noise`` a cycle later; it may change only with ``landed``.

    ``row``: a channel is read, ``first`` and ``last`` of ``current``'s pass, which stands until the next begins;
    ``address`` in both banks, ``fetch`` where they are read: with one plane a row of each bank has two channels, the
    even one in the key bank. ``noise_now``: the register of ``current``. Reset forgets all passes.
    """

    i: stream.Interface
    allowed: Signal
    landed: Signal
    landing: Signal
    looks: Signal
    noise: Signal
    noise_now: Signal
    row: Signal
    first: Signal
    last: Signal
    fetch: Signal
    odd: Signal
    channel: Signal
    address: Signal
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
            "row": Out(1),
            "first": Out(1),
            "last": Out(1),
            "fetch": Out(1),
            "odd": Out(1),
            "channel": Out(range(channel_limit(g))),
            "address": Out(range(g.rows)),
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
        config = self.current.config
        free = ~running | (self.last & (self.gap == 0))
        m.d.comb += [
            conflict.eq(Cat(f.busy & (f.slot == self.i.payload.slot) for f in flights).any()),
            begins.eq(self.i.valid & fit & free & (waits == 0) & (held != FLIGHTS) & self.allowed),
            self.i.ready.eq(begins),
            self.looks.eq(self.i.payload.slot),
            self.row.eq(running),
            self.first.eq(self.channel == 0),
            self.last.eq(running & (self.channel == config.channels - 1)),
            self.odd.eq(self.channel[0]),
            self.fetch.eq(running & (config.mode.wide | ~self.odd)),
            self.address.eq(config.base + Mux(config.mode.wide, self.channel, self.channel >> 1)),
            self.busy.eq(running | (held != 0)),
        ]
        # the noise register of the pass on offer was read in the cycle before, after what the pass before wrote
        m.d.sync += [fit.eq(self.i.valid & ~conflict & ~begins), held.eq(held + begins - self.landed)]
        with m.If(running):
            m.d.sync += self.channel.eq(self.channel + 1)
        with m.If(self.last):
            m.d.sync += [running.eq(0), waits.eq(max(0, self.gap - 1))]
        with m.Elif(waits != 0):
            m.d.sync += waits.eq(waits - 1)
        with m.If(begins):
            m.d.sync += [
                running.eq(1), self.channel.eq(0), self.current.eq(self.i.payload), self.noise_now.eq(self.noise),
                newest.eq(newest + 1),
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
