"""Requests from the link: header, payload as it arrives, and a verdict at the end."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Elaboratable, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import frame
from statecell.spec.commands import Status
from statecell.spec.geometry import Geometry
from statecell_hw.link.crc import Crc

REQUEST = data.StructLayout({f.name: 8 * f.width for f in frame.REQUEST_HEADER})
"""Request header; the table's fields follow each other without gaps."""
STATUS_BITS = max(Status).bit_length()
UNREADABLE = (1 << REQUEST["sequence"].width) - 1
"""Sequence number of an answer to a frame without a whole header."""


def word_layout(g: Geometry) -> data.StructLayout:
    """One link word: the data bytes in the low bits, the flag of a frame's last word above them."""
    return data.StructLayout({"data": 8 * g.link_bytes, "last": 1})


class Deframer(wiring.Component):
    """Takes frames apart, cut-through: the payload is passed on before the CRC is known.

    Every frame ends at its `last` word and gives exactly one `verdict`. In this order: BAD_FRAME for a frame shorter
    than header and trailer, BAD_VERSION, BAD_FRAME where `last` is not where the length field says, BAD_CRC for a
    trailer that is not the CRC padded with zeros, OK. The header of a frame is offered on `header` only if it has the
    right version and does not end the frame; then come up to `blocks` blocks of payload, then the verdict. Latency 0
    for payload words, one word a cycle; a header of one word costs one cycle more, a verdict another.

    Members
    -------
    i: link words.
    header: the request's header. Its payload stays until the verdict is taken; for a frame without a whole header
        sequence is 0xFFFF and the other fields are 0.
    payload: payload words.
    verdict: Status of the frame.
    """

    i: stream.Interface
    header: stream.Interface
    payload: stream.Interface
    verdict: stream.Interface

    def __init__(self, g: Geometry) -> None:
        self.g = g
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(g))),
                "header": Out(stream.Signature(REQUEST)),
                "payload": Out(stream.Signature(8 * g.link_bytes)),
                "verdict": Out(stream.Signature(STATUS_BITS)),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        word_bits = 8 * self.g.link_bytes
        header_words = frame.BLOCK // self.g.link_bytes
        trailer_words = frame.trailer_bytes(self.g.link_bytes) // self.g.link_bytes
        m.submodules.crc = crc = Crc(link_bytes=self.g.link_bytes)

        word, last, comes = self.i.payload.data, self.i.payload.last, self.i.valid
        take = Signal()  # in PAYLOAD; in the other states every word that comes is taken
        header = data.View(REQUEST, Signal(REQUEST.size, name="request", reset_less=True))
        complete = Signal()
        status = Signal(STATUS_BITS)
        index = Signal(range(max(header_words, trailer_words)))  # word of the header or of the trailer
        left = Signal(REQUEST["blocks"].width + (header_words - 1).bit_length())  # payload words to come
        wrong = Signal()  # an earlier trailer word did not match
        m.d.comb += [
            take.eq(comes & self.payload.ready),
            crc.data.eq(word),
            self.verdict.payload.eq(status),
            self.header.payload.eq(header),
        ]
        with m.If(~complete):
            m.d.comb += self.header.payload.eq(REQUEST.const({"sequence": UNREADABLE}))

        at_trailer_end = index == trailer_words - 1
        expected = Signal(word_bits)
        m.d.comb += expected.eq(crc.crc.word_select(index, word_bits) if trailer_words > 1 else crc.crc)

        with m.FSM():
            with m.State("HEADER"):
                m.d.comb += [self.i.ready.eq(1), crc.en.eq(comes)]
                with m.If(comes):
                    m.d.sync += [
                        header.eq(Cat(header.as_value(), word)[word_bits:]),
                        index.eq(index + 1),
                        status.eq(Status.BAD_FRAME),
                    ]
                    with m.If(index == header_words - 1):
                        m.d.sync += [complete.eq(1), index.eq(0)]
                        m.next = "OFFER"
                    with m.If(last):
                        m.next = "VERDICT"
            with m.State("OFFER"):
                m.d.comb += self.header.valid.eq(header.version == frame.VERSION)
                m.d.sync += left.eq(header.blocks * header_words)
                with m.If(header.version != frame.VERSION):
                    m.next = "STRANGE"
                with m.Elif(self.header.ready):
                    m.next = "PAYLOAD"
                    with m.If(header.blocks == 0):
                        m.next = "TRAILER"
            with m.State("PAYLOAD"):
                m.d.comb += [
                    self.payload.valid.eq(self.i.valid),
                    self.payload.payload.eq(word),
                    self.i.ready.eq(self.payload.ready),
                    crc.en.eq(take),
                ]
                with m.If(take):
                    m.d.sync += left.eq(left - 1)
                    with m.If(last):
                        m.next = "VERDICT"
                    with m.Elif(left == 1):
                        m.next = "TRAILER"
            with m.State("TRAILER"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(comes):
                    m.d.sync += [index.eq(index + 1), wrong.eq(wrong | (word != expected))]
                    with m.If(at_trailer_end):
                        m.next = "SWALLOW"
                    with m.If(last):
                        m.next = "VERDICT"
                        with m.If(at_trailer_end):
                            m.d.sync += status.eq(Status.OK)
                            with m.If(wrong | (word != expected)):
                                m.d.sync += status.eq(Status.BAD_CRC)
            with m.State("STRANGE"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(comes):
                    with m.If(~at_trailer_end):
                        m.d.sync += index.eq(index + 1)
                    with m.Else():
                        m.d.sync += status.eq(Status.BAD_VERSION)
                    with m.If(last):
                        m.next = "VERDICT"
            with m.State("SWALLOW"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(comes & last):
                    m.next = "VERDICT"
            with m.State("VERDICT"):
                m.d.comb += [self.verdict.valid.eq(1), crc.clear.eq(1)]
                m.d.sync += [index.eq(0), wrong.eq(0)]
                with m.If(self.verdict.ready):
                    m.d.sync += complete.eq(0)
                    m.next = "HEADER"
        return m
