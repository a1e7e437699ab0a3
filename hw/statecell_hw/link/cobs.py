"""Consistent overhead byte stuffing: frames of any bytes on a wire on which zero ends a frame."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec.serial import COBS_BLOCK, DELIMITER

BYTE_BITS = 8
FULL = COBS_BLOCK + 1
"""Code of a block behind which no zero is meant."""

FRAME_BYTE = data.StructLayout({"data": BYTE_BITS, "last": 1})
"""A byte of a frame; `last` ends the frame."""


class CobsDecoder(wiring.Component):
    """Bytes of the wire to bytes of frames.

    A byte is passed on when the next one, or the delimiter, is there: only then it is known whether it is the last.
    Empty frames vanish. A block that a delimiter cuts short ends the frame like any other; its CRC tells. Latency 0
    from the byte that follows, one byte a cycle. Reset forgets a frame that has begun.

    Members
    -------
    i: bytes of the wire.
    o: bytes of frames.
    """

    i: stream.Interface
    o: stream.Interface

    def __init__(self) -> None:
        super().__init__({"i": In(stream.Signature(BYTE_BITS)), "o": Out(stream.Signature(FRAME_BYTE))})

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        byte = self.i.payload
        held = Signal(BYTE_BITS, reset_less=True)
        holds = Signal()  # a byte is held back
        left = Signal(BYTE_BITS)  # bytes of the block to come
        code = Signal(init=1)  # none: the byte is the code of the next block
        zero = Signal()  # a zero stands between the last block and the next
        end = Signal()
        found = Signal()  # this byte gives a byte of the frame
        m.d.comb += [
            end.eq(byte == DELIMITER),
            found.eq(~end & (~code | zero)),
            self.o.valid.eq(self.i.valid & holds & (end | found)),
            self.o.payload.data.eq(held),
            self.o.payload.last.eq(end),
            self.i.ready.eq(self.o.ready | ~self.o.valid),
        ]
        with m.If(self.i.valid & self.i.ready):
            with m.If(end):
                m.d.sync += [holds.eq(0), code.eq(1), zero.eq(0)]
            with m.Elif(code):
                m.d.sync += [left.eq(byte - 1), code.eq(byte == 1), zero.eq(byte != FULL)]
            with m.Else():
                m.d.sync += [left.eq(left - 1), code.eq(left == 1)]
            with m.If(found):
                m.d.sync += [holds.eq(1), held.eq(Mux(code, 0, byte))]
        return m


class CobsEncoder(wiring.Component):
    """Bytes of frames to bytes of the wire, a delimiter behind each frame.

    A block is gathered before its code byte can go out, and each of its bytes waits in a register behind the memory, so
    n bytes of a block cost 3 n + 3 cycles, the end of a frame 2 more at most. Reset drops what has been gathered.

    Members
    -------
    i: bytes of frames.
    o: bytes of the wire.
    idle: no frame is begun.
    """

    i: stream.Interface
    o: stream.Interface
    idle: Signal

    def __init__(self) -> None:
        super().__init__(
            {"i": In(stream.Signature(FRAME_BYTE)), "o": Out(stream.Signature(BYTE_BITS)), "idle": Out(1)}
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        block: Memory = Memory(shape=BYTE_BITS, depth=1 << BYTE_BITS, init=[])
        m.submodules.block = block
        write, read = block.write_port(), block.read_port()
        code = Signal(BYTE_BITS, init=1)  # bytes gathered, or still to be sent, and 1
        place = Signal(BYTE_BITS, init=1)  # of the byte to be fetched
        fetched = Signal(BYTE_BITS, reset_less=True)
        last = Signal()  # the frame ends with this block
        again = Signal()  # the frame ends with a zero, which an empty block behind it says
        begun = Signal()
        byte = self.i.payload
        m.d.comb += [
            write.addr.eq(code),
            write.data.eq(byte.data),
            read.addr.eq(place),
            self.idle.eq(~begun),
        ]
        with m.FSM():
            with m.State("GATHER"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid):
                    zero = byte.data == 0
                    m.d.comb += write.en.eq(~zero)
                    m.d.sync += [begun.eq(1), last.eq(byte.last & ~zero), again.eq(byte.last & zero)]
                    with m.If(~zero):
                        m.d.sync += code.eq(code + 1)
                    with m.If(zero | byte.last | (code == COBS_BLOCK)):
                        m.next = "CODE"
            with m.State("CODE"):
                m.d.comb += [self.o.valid.eq(1), self.o.payload.eq(code)]
                with m.If(self.o.ready):
                    m.next = "FETCH"
                    with m.If(code == 1):
                        m.next = "NEXT"
            with m.State("FETCH"):
                m.d.sync += [fetched.eq(read.data), place.eq(place + 1), code.eq(code - 1)]
                m.next = "BYTES"
            with m.State("BYTES"):
                m.d.comb += [self.o.valid.eq(1), self.o.payload.eq(fetched)]
                with m.If(self.o.ready):
                    m.next = "FETCH"
                    with m.If(code == 1):
                        m.next = "NEXT"
            with m.State("NEXT"):
                m.d.sync += [place.eq(1), again.eq(0), last.eq(again)]
                m.next = "GATHER"
                with m.If(again):
                    m.next = "CODE"
                with m.Elif(last):
                    m.next = "END"
            with m.State("END"):
                m.d.comb += [self.o.valid.eq(1), self.o.payload.eq(DELIMITER)]
                with m.If(self.o.ready):
                    m.d.sync += begun.eq(0)
                    m.next = "GATHER"
        return m
