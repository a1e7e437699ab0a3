"""Answers to a lossy link: sent once each, and again when they are asked for."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import frame
from statecell.spec.commands import Opcode, Status
from statecell.spec.geometry import Geometry
from statecell.spec.serial import SerialLink
from statecell_hw.link.cobs import BYTE_BITS, FRAME_BYTE
from statecell_hw.link.deframer import word_layout
from statecell_hw.link.intake import SEQUENCE_BITS

UNREAD = (Status.BAD_FRAME, Status.BAD_VERSION, Status.BAD_CRC)
"""Outcomes of a frame that was not read: it had no turn, and its answer is not kept."""
_OFFSET = {f.name: f.offset for f in frame.RESPONSE_HEADER}


class Answers(wiring.Component):
    """Stores each answer, then sends it; the last ones stay and can be sent again.

    Answers follow each other in a memory that is used in a ring, so that the last `link.answer_bytes` bytes of them are
    there. Where each begins stands in a table by the low bits of its number. An answer to a frame that was not read, or
    to CONNECT, is stored behind the others, sent, and then overwritten by the next. An answer that is longer than the
    memory is cut. Between frames a new answer goes before a repeat; a repeat of an answer that is not there is ignored:
    it is on its way, or too old.

    One byte a cycle; a word stays on `i` until its last byte is stored. Reset forgets all answers.

    Members
    -------
    i: words of frames, as the framer gives them.
    o: bytes of frames, without the zeros behind the CRC.
    begin, sequence: a session begins: forget the answers; the next is that of the number after `sequence`. Not while
        an answer is on `i`.
    repeat: number of an answer to send again.
    connected: the answer to a CONNECT has left.
    idle: nothing is stored or sent.
    """

    i: stream.Interface
    o: stream.Interface
    begin: Signal
    sequence: Signal
    repeat: stream.Interface
    connected: Signal
    idle: Signal

    def __init__(self, g: Geometry, link: SerialLink) -> None:
        self.g = g
        self.link = link
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(g))),
                "o": Out(stream.Signature(FRAME_BYTE)),
                "begin": In(1),
                "sequence": In(SEQUENCE_BITS),
                "repeat": In(stream.Signature(SEQUENCE_BITS)),
                "connected": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        size = self.link.answer_bytes
        address_bits = exact_log2(size)
        ring: Memory = Memory(shape=BYTE_BITS, depth=size, init=[])
        store, load = ring.write_port(), ring.read_port()
        starts: Memory = Memory(shape=address_bits, depth=self.link.answers + 1, init=[])
        m.submodules.ring = ring
        m.submodules.starts = starts
        note, find = starts.write_port(), starts.read_port()

        begin, number = Signal(), Signal(SEQUENCE_BITS)  # a session began a cycle ago; its first answer's number
        free = Signal(address_bits)  # where the next answer begins
        to = Signal(address_bits)  # where the next byte goes
        due = Signal(SEQUENCE_BITS)  # its number
        held = Signal(range(self.link.answers + 1))  # answers before it that are there
        place = Signal(range(self.g.link_bytes))  # byte of the word
        count = Signal(range(size + 1))  # bytes stored, or still to be sent
        full = count[-1]
        first, final = Signal(address_bits), Signal()  # where the byte to send is; it is the last
        connect, unread = Signal(), Signal()
        byte, last = Signal(BYTE_BITS), Signal()
        entry = Signal(find.addr.shape())  # of the table
        past, moved = Signal(SEQUENCE_BITS), Signal()
        tail = min(self.g.link_bytes, frame.CRC_BYTES)  # bytes of a frame's last word that are not filling
        m.d.comb += [
            byte.eq(self.i.payload.data.word_select(place, BYTE_BITS)),
            last.eq(place == Mux(self.i.payload.last, tail, self.g.link_bytes) - 1),
            moved.eq(self.o.valid & self.o.ready),
            store.addr.eq(to),
            store.data.eq(byte),
            load.addr.eq(first + moved),
            self.o.payload.data.eq(load.data),
            self.o.payload.last.eq(final),
            # The end of an answer is the start of the next, so the next one's start is noted before it is there.
            note.addr.eq(Mux(begin, number, due + 1)),
            note.data.eq(Mux(begin, free, to + 1)),
            find.addr.eq(entry),
        ]
        m.d.sync += [begin.eq(self.begin), number.eq(self.sequence + 1), past.eq(due - self.repeat.payload)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.idle.eq(~self.i.valid & ~self.repeat.valid)
                m.d.sync += [count.eq(0), first.eq(free), to.eq(free), connect.eq(0), unread.eq(0)]
                m.d.sync += entry.eq(self.repeat.payload)
                with m.If(self.i.valid):
                    m.next = "STORE"
                with m.Elif(self.repeat.valid):
                    m.next = "FIND"
            with m.State("STORE"):
                m.d.comb += [store.en.eq(self.i.valid & ~full), self.i.ready.eq(last)]
                with m.If(self.i.valid):
                    m.d.sync += place.eq(Mux(last, 0, place + 1))
                    with m.If(~full):
                        m.d.sync += [count.eq(count + 1), to.eq(to + 1)]
                    with m.If(count == _OFFSET["opcode"]):
                        m.d.sync += connect.eq(byte == Opcode.CONNECT | frame.RESPONSE)
                    with m.If(count == _OFFSET["status"]):
                        m.d.sync += unread.eq(byte.matches(*(int(status) for status in UNREAD)))
                    with m.If(last & self.i.payload.last):
                        m.next = "LOAD"
                        with m.If(~connect & ~unread):
                            m.d.comb += note.en.eq(1)
                            m.d.sync += [free.eq(to + 1), due.eq(due + 1)]
                            with m.If(held != self.link.answers):
                                m.d.sync += held.eq(held + 1)
            with m.State("FIND"):
                m.d.sync += entry.eq(entry + 1)
                m.next = "FOUND"
            with m.State("FOUND"):
                # The table has the start of the answer now; its end is asked for.
                m.d.sync += first.eq(find.data)
                m.next = "MEASURE"
            with m.State("MEASURE"):
                m.d.comb += self.repeat.ready.eq(1)
                m.d.sync += count.eq((find.data - first)[:address_bits])
                m.next = "IDLE"
                with m.If((past != 0) & (past <= held)):
                    m.next = "LOAD"
            with m.State("LOAD"):
                m.d.sync += final.eq(count == 1)
                m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.sync += [first.eq(first + 1), count.eq(count - 1), final.eq(count == 2)]
                    with m.If(final):
                        m.d.comb += self.connected.eq(connect)
                        m.next = "IDLE"
        with m.If(begin):
            m.d.comb += note.en.eq(1)
            m.d.sync += [due.eq(number), held.eq(0)]
        return m
