"""Requests from a lossy link: each frame reaches the device once and in its turn."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Elaboratable, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import frame
from statecell.spec.commands import Opcode
from statecell.spec.geometry import Geometry
from statecell.spec.serial import SESSION_BITS, SerialLink
from statecell_hw.link.cobs import BYTE_BITS, FRAME_BYTE
from statecell_hw.link.deframer import word_layout

SEQUENCE_BITS = exact_log2(frame.SEQUENCES)
_HEAD_BYTES = 4  # version, opcode, sequence: the header's part that decides about a frame
_HEAD_BITS = BYTE_BITS * _HEAD_BYTES


class Intake(wiring.Component):
    """Passes on the frame whose turn it is, has answers repeated, and drops everything else.

    A frame is judged by its first four bytes, before its CRC is known, and passed on while it arrives. That is safe
    because the device does nothing with a damaged frame, and only a frame that `accepted` names moves the count on. A
    frame with the number due is passed on; one of the `link.answers` before it was carried out already and asks for
    its answer; CONNECT is passed on always and begins a session with the number after its own, if it is carried out
    and its session is not the one that runs. Without a session only CONNECT gets through. Frames of four bytes and
    less are dropped.

    A word costs one cycle more than its bytes, a frame the four bytes of its head and the device's verdict. Reset ends
    the session.

    Members
    -------
    i: bytes of frames.
    o: link words, the last of a frame filled up with zeros.
    accepted, rejected: the device has read a whole good frame; it could not read a frame.
    connect, token: the device carries out a CONNECT of this session.
    session: session that runs, 0 for none.
    begin, sequence: a session begins; the number of its first request follows `sequence`.
    repeat: number of a request whose answer is asked for again.
    idle: no frame has begun.
    """

    i: stream.Interface
    o: stream.Interface
    accepted: Signal
    rejected: Signal
    connect: Signal
    token: Signal
    session: Signal
    begin: Signal
    sequence: Signal
    repeat: stream.Interface
    idle: Signal

    def __init__(self, g: Geometry, link: SerialLink) -> None:
        self.g = g
        self.link = link
        super().__init__(
            {
                "i": In(stream.Signature(FRAME_BYTE)),
                "o": Out(stream.Signature(word_layout(g))),
                "accepted": In(1),
                "rejected": In(1),
                "connect": In(1),
                "token": In(SESSION_BITS),
                "session": Out(SESSION_BITS),
                "begin": Out(1),
                "sequence": Out(SEQUENCE_BITS),
                "repeat": Out(stream.Signature(SEQUENCE_BITS)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        head = Signal(_HEAD_BITS, reset_less=True)
        index = Signal(range(_HEAD_BYTES))
        due = Signal(SEQUENCE_BITS)
        taken, byte, last = Signal(), Signal(BYTE_BITS), Signal()  # a byte for the word
        full = self._words(m, taken, byte, last)

        fields = {f.name: head[BYTE_BITS * f.offset :][: BYTE_BITS * f.width] for f in frame.REQUEST_HEADER[:3]}
        number, past = fields["sequence"], Signal(SEQUENCE_BITS)
        known = Signal()
        m.d.comb += [
            past.eq(due - number[:SEQUENCE_BITS]),
            known.eq((self.session != 0) & (number < frame.SEQUENCES)),
            self.sequence.eq(number),
            self.repeat.payload.eq(number),
            self.begin.eq(self.connect & (self.token != self.session)),
            self.idle.eq(0),
        ]
        with m.If(self.begin):
            m.d.sync += self.session.eq(self.token)

        with m.FSM():
            with m.State("HEAD"):
                m.d.comb += [self.i.ready.eq(1), self.idle.eq(index == 0)]
                with m.If(self.i.valid):
                    m.d.sync += [head.eq((head >> BYTE_BITS) | (self.i.payload.data << (_HEAD_BITS - BYTE_BITS)))]
                    m.d.sync += index.eq(index + 1)
                    with m.If(self.i.payload.last):
                        m.d.sync += index.eq(0)
                    with m.Elif(index == _HEAD_BYTES - 1):
                        m.next = "JUDGE"
            with m.State("JUDGE"):
                m.next = "SKIP"
                with m.If((fields["opcode"] == Opcode.CONNECT) | (known & (past == 0))):
                    m.next = "PASS_HEAD"
                with m.Elif(known & (past <= self.link.answers)):
                    m.next = "REPEAT"
            with m.State("REPEAT"):
                m.d.comb += self.repeat.valid.eq(1)
                with m.If(self.repeat.ready):
                    m.next = "SKIP"
            with m.State("SKIP"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid & self.i.payload.last):
                    m.next = "HEAD"
            with m.State("PASS_HEAD"):
                m.d.comb += [byte.eq(head.word_select(index, BYTE_BITS)), taken.eq(~full)]
                with m.If(taken):
                    m.d.sync += index.eq(index + 1)
                    with m.If(index == _HEAD_BYTES - 1):
                        m.next = "PASS"
            with m.State("PASS"):
                m.d.comb += [
                    byte.eq(self.i.payload.data),
                    last.eq(self.i.payload.last),
                    self.i.ready.eq(~full),
                    taken.eq(self.i.valid & ~full),
                ]
                with m.If(taken & last):
                    m.next = "VERDICT"
            with m.State("VERDICT"):
                with m.If(self.accepted | self.rejected):
                    m.next = "HEAD"
                with m.If(self.begin | (self.accepted & (fields["opcode"] != Opcode.CONNECT))):
                    m.d.sync += due.eq(number + 1)
        return m

    def _words(self, m: Module, taken: Signal, byte: Signal, last: Signal) -> Signal:
        """Bytes gathered to words; returns the flag that a word waits and no byte may come."""
        count = self.g.link_bytes
        word, full, end = Array(Signal(BYTE_BITS, name=f"byte_{n}") for n in range(count)), Signal(), Signal()
        place = Signal(range(count))
        m.d.comb += [
            self.o.valid.eq(full),
            self.o.payload.last.eq(end),
            *(self.o.payload.data.word_select(n, BYTE_BITS).eq(word[n]) for n in range(count)),
        ]
        with m.If(full & self.o.ready):
            m.d.sync += [full.eq(0), place.eq(0), *(b.eq(0) for b in word)]
        with m.If(taken):
            m.d.sync += [word[place].eq(byte), place.eq(place + 1), full.eq(last | (place == count - 1)), end.eq(last)]
        return full
