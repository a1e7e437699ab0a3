"""Responses to the link: the CRC trailer behind header and payload."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import frame
from statecell.spec.geometry import Geometry
from statecell_hw.link.crc import Crc
from statecell_hw.link.deframer import word_layout

RESPONSE = data.StructLayout({f.name: 8 * f.width for f in frame.RESPONSE_HEADER})
"""Response header; the table's fields follow each other without gaps."""


class Framer(wiring.Component):
    """Passes the words of a body (header and payload) on and appends the trailer.

    Latency 0, one word a cycle; the trailer holds `i` for its own words. Back-pressure passes through.

    Members
    -------
    i: words of a body; `last` ends the body.
    o: link words; `last` ends the frame.
    idle: no frame is begun.
    """

    i: stream.Interface
    o: stream.Interface
    idle: Signal

    def __init__(self, g: Geometry) -> None:
        self.g = g
        signature = stream.Signature(word_layout(g))
        super().__init__({"i": In(signature), "o": Out(signature), "idle": Out(1)})

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        word_bits = 8 * self.g.link_bytes
        trailer_words = frame.trailer_bytes(self.g.link_bytes) // self.g.link_bytes
        m.submodules.crc = crc = Crc(link_bytes=self.g.link_bytes)
        trailer, begun = Signal(), Signal()
        index = Signal(range(trailer_words))
        take = Signal()
        m.d.comb += [
            take.eq(self.i.valid & self.i.ready),
            crc.en.eq(take),
            crc.data.eq(self.i.payload.data),
            self.idle.eq(~begun),
        ]
        with m.If(trailer):
            m.d.comb += [
                self.o.valid.eq(1),
                self.o.payload.data.eq(crc.crc.word_select(index, word_bits) if trailer_words > 1 else crc.crc),
                self.o.payload.last.eq(index == trailer_words - 1),
            ]
            with m.If(self.o.ready):
                m.d.sync += index.eq(index + 1)
                with m.If(self.o.payload.last):
                    m.d.comb += crc.clear.eq(1)
                    m.d.sync += [trailer.eq(0), index.eq(0), begun.eq(0)]
        with m.Else():
            m.d.comb += [
                self.o.valid.eq(self.i.valid),
                self.o.payload.data.eq(self.i.payload.data),
                self.i.ready.eq(self.o.ready),
            ]
            with m.If(take):
                m.d.sync += [trailer.eq(self.i.payload.last), begun.eq(1)]
        return m
