"""The device on a serial link: as bytes on the wire, and as a board's top level with its two pins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry
from statecell.spec.serial import DIVISOR_BITS, SILENCE_S, START_BAUD, SerialLink, divisor
from statecell_hw.array.multiply import Multiplier
from statecell_hw.device import device_of
from statecell_hw.link.answers import Answers
from statecell_hw.link.cobs import BYTE_BITS, CobsDecoder, CobsEncoder
from statecell_hw.link.intake import Intake
from statecell_hw.link.uart import IDLE_HIGH_IN, IDLE_HIGH_OUT, UartReceiver, UartTransmitter
from statecell_hw.stage import Stage


class SerialCell(wiring.Component):
    """The device between two streams of bytes as they are on the wire: COBS, each command once, answers repeated.

    Reset as StateCell's, and it ends the session.

    Members
    -------
    i, o: bytes of the wire.
    connected, divisor: the answer to a CONNECT has left Answers; the bit length that it asked for, 0 for none.
    accepted, rejected: a good frame was read; a frame could not be read.
    link: a session runs.
    busy: a request or an answer is on its way.
    sending: an answer, or a part of one, has not left yet.
    """

    i: stream.Interface
    o: stream.Interface
    connected: Signal
    divisor: Signal
    accepted: Signal
    rejected: Signal
    link: Signal
    busy: Signal
    sending: Signal

    def __init__(
        self, g: Geometry, link: SerialLink, *, build_hash: int = 0, multiplier: Multiplier = "native"
    ) -> None:
        self.cell = device_of(g, build_hash=build_hash, multiplier=multiplier, serial=link)
        self.decoder, self.encoder = CobsDecoder(), CobsEncoder()
        self.intake, self.answers = Intake(g, link), Answers(g, link)
        # bytes of requests and answers, and link words, wait a cycle between blocks that would else decide on each
        # other's enables
        self.part = Stage(self.decoder.o.payload.shape())
        self.request = Stage(self.cell.i.payload.shape())
        self.word = Stage(self.cell.o.payload.shape())
        self.byte = Stage(self.answers.o.payload.shape())
        wire = stream.Signature(BYTE_BITS)
        super().__init__(
            {
                "i": In(wire),
                "o": Out(wire),
                "connected": Out(1),
                "divisor": Out(DIVISOR_BITS),
                "accepted": Out(1),
                "rejected": Out(1),
                "link": Out(1),
                "busy": Out(1),
                "sending": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        cell, decoder, encoder, intake, answers = self.cell, self.decoder, self.encoder, self.intake, self.answers
        m.submodules.cell = cell
        m.submodules.decoder = decoder
        m.submodules.encoder = encoder
        m.submodules.intake = intake
        m.submodules.answers = answers
        m.submodules.part = part = self.part
        m.submodules.request = request = self.request
        m.submodules.word = word = self.word
        m.submodules.byte = byte = self.byte
        wiring.connect(m, wiring.flipped(self.i), decoder.i)
        wiring.connect(m, decoder.o, part.i)
        wiring.connect(m, part.o, intake.i)
        wiring.connect(m, intake.o, request.i)
        wiring.connect(m, request.o, cell.i)
        wiring.connect(m, cell.o, word.i)
        wiring.connect(m, word.o, answers.i)
        wiring.connect(m, intake.repeat, answers.repeat)
        wiring.connect(m, answers.o, byte.i)
        wiring.connect(m, byte.o, encoder.i)
        wiring.connect(m, encoder.o, wiring.flipped(self.o))
        # a cycle late; the request that they tell of is still there
        connect = Signal()
        m.d.sync += [
            self.accepted.eq(cell.link.accepted), self.rejected.eq(cell.link.rejected), connect.eq(cell.link.connect),
        ]
        m.d.comb += [
            intake.accepted.eq(self.accepted),
            intake.rejected.eq(self.rejected),
            intake.connect.eq(connect),
            intake.token.eq(cell.link.token),
            cell.link.session.eq(intake.session),
            answers.begin.eq(intake.begin),
            answers.sequence.eq(intake.sequence),
            self.connected.eq(answers.connected),
            self.link.eq(intake.session != 0),
            self.sending.eq(~answers.idle | byte.o.valid | ~encoder.idle),
            self.busy.eq(part.o.valid | ~intake.idle | cell.link.answering | self.sending),
        ]
        with m.If(connect):
            m.d.sync += self.divisor.eq(cell.link.divisor)
        return m


class SerialTop(wiring.Component):
    """A board's top level: the device behind a UART.

    Starts at START_BAUD. CONNECT sets another rate, which begins when its answer is out. A break, and SILENCE_S seconds
    without a good frame, bring START_BAUD back; a break also ends a frame that has begun. Neither touches the session
    or the array. Bytes wait in a queue of `link.request_bytes`; a byte for which there is no room is lost, and the
    frame's CRC finds that.

    Parameters
    ----------
    g: geometry; its clock_hz is not used.
    clock_hz: clock of the domain `sync`, which INFO shows and the bit rates are made of.
    link: buffers.
    build_hash, multiplier: as StateCell's.

    Raises ValueError for a clock that cannot give START_BAUD.

    Members
    -------
    rx, tx: the wires, high when idle.
    link: a session runs.
    busy: a request or an answer is on its way.
    error: something damaged came since the last good frame.
    """

    rx: Signal
    tx: Signal
    link: Signal
    busy: Signal
    error: Signal

    def __init__(
        self,
        g: Geometry,
        *,
        clock_hz: int,
        link: SerialLink | None = None,
        build_hash: int = 0,
        multiplier: Multiplier = "native",
    ) -> None:
        self.g = replace(g, clock_hz=clock_hz)
        self.serial = link or SerialLink()
        self.start_divisor = divisor(clock_hz, START_BAUD)
        self.silence_cycles = SILENCE_S * clock_hz
        self.cell = SerialCell(self.g, self.serial, build_hash=build_hash, multiplier=multiplier)
        super().__init__({"rx": IDLE_HIGH_IN, "tx": IDLE_HIGH_OUT, "link": Out(1), "busy": Out(1), "error": Out(1)})

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.cell = cell = self.cell
        m.submodules.receiver = receiver = UartReceiver()
        m.submodules.transmitter = transmitter = UartTransmitter()
        m.submodules.queue = queue = SyncFIFOBuffered(width=BYTE_BITS, depth=self.serial.request_bytes)
        rate = Signal(DIVISOR_BITS, init=self.start_divisor)
        due = Signal()  # the answer to a CONNECT is out of Answers, the rate changes when it is on the wire
        silence, silent = Signal(range(self.silence_cycles)), Signal()  # cycles without a good frame; too many
        # the queue's memory is slow, and a byte on the wire takes many cycles
        m.submodules.come = come = Stage(BYTE_BITS)
        wiring.connect(m, queue.r_stream, come.i)
        wiring.connect(m, come.o, cell.i)
        wiring.connect(m, cell.o, transmitter.i)
        # nothing is on its way to the wire or on it; a cycle late for the change of rate, which has time
        sent, was_sent = Signal(), Signal()
        m.d.comb += sent.eq(~cell.sending & transmitter.idle)
        m.d.sync += was_sent.eq(sent)
        m.d.comb += [
            receiver.rx.eq(self.rx),
            self.tx.eq(transmitter.tx),
            receiver.divisor.eq(rate),
            transmitter.divisor.eq(rate),
            queue.w_en.eq(receiver.valid | receiver.broken),
            queue.w_data.eq(Mux(receiver.broken, 0, receiver.data)),
            self.link.eq(cell.link),
            self.busy.eq(cell.busy | queue.r_rdy | come.o.valid | ~sent),
        ]
        with m.If(cell.connected):
            m.d.sync += due.eq(1)
        with m.If(due & was_sent):
            m.d.sync += due.eq(0)
            with m.If(cell.divisor != 0):
                m.d.sync += rate.eq(cell.divisor)
        with m.If(cell.accepted):
            m.d.sync += [silence.eq(0), silent.eq(0), self.error.eq(0)]
        with m.Elif(~silent):
            m.d.sync += [silence.eq(silence + 1), silent.eq(silence == self.silence_cycles - 1)]
        with m.If(cell.rejected | receiver.framing | (queue.w_en & ~queue.w_rdy)):
            m.d.sync += self.error.eq(1)
        with m.If(receiver.broken | silent):
            m.d.sync += [rate.eq(self.start_divisor), due.eq(0)]
        return m
