"""Registers in a stream: where the way of a word, or of the readiness for it, would be too long for one cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Mux, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out


class Stage(wiring.Component):
    """Holds two words, so that nothing passes through within a cycle, neither a word nor readiness. Latency 1,
    interval 1. Reset drops the words.

    Members
    -------
    i, o: words in and out.
    """

    i: stream.Interface
    o: stream.Interface

    def __init__(self, shape: ShapeLike) -> None:
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        # the word on offer, and one that came when it did not leave
        held, spare = (Signal.like(self.o.payload, name=name, reset_less=True) for name in ("held", "spare"))
        # `ready` is ~full, a register of its own: both have far to go
        full, ready, moves = Signal(), Signal(init=1), Signal()
        m.d.comb += [self.i.ready.eq(ready), self.o.payload.eq(held), moves.eq(~self.o.valid | self.o.ready)]
        with m.If(ready):
            m.d.sync += spare.eq(self.i.payload)
        with m.If(moves):
            m.d.sync += [
                self.o.valid.eq(full | self.i.valid),
                held.eq(Mux(full, spare, self.i.payload)),
                full.eq(0),
                ready.eq(1),
            ]
        with m.Elif(self.i.valid):
            m.d.sync += [full.eq(1), ready.eq(0)]
        return m
