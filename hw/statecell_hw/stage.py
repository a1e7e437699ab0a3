"""A register in a stream: where the way of a word, or of the readiness for it, would be too long for one cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out


class Stage(wiring.Component):
    """Holds one word; latency 1. Reset drops it.

    Interval 1: a word moves in while the one before it moves out, so `i.ready` follows `o.ready`. With `cut` it does
    not, and the interval is 2.

    Members
    -------
    i, o: words in and out.
    """

    i: stream.Interface
    o: stream.Interface

    def __init__(self, shape: ShapeLike, *, cut: bool = False) -> None:
        self.cut = cut
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        held = Signal.like(self.o.payload, name="held", reset_less=True)
        m.d.comb += [
            self.i.ready.eq(~self.o.valid if self.cut else ~self.o.valid | self.o.ready),
            self.o.payload.eq(held),
        ]
        with m.If(self.i.ready):
            m.d.sync += self.o.valid.eq(self.i.valid)
            with m.If(self.i.valid):
                m.d.sync += held.eq(self.i.payload)
        if self.cut:
            with m.Elif(self.o.ready):
                m.d.sync += self.o.valid.eq(0)
        return m
