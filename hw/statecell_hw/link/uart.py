"""Bytes on two wires: 8 data bits, no parity, one stop bit, at a rate that a divisor sets."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Elaboratable, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer  # type: ignore[import-untyped]  # the stubs leave it out
from amaranth.lib.wiring import In, Out

from statecell.spec.serial import BREAK_BITS, DIVISOR_BITS, FRACTION_BITS

DATA_BITS = 8
FRAME_BITS = DATA_BITS + 2
SAMPLES = 3
IDLE_HIGH_IN = In(1, init=1)  # type: ignore[call-arg]  # the stubs leave `init` out
IDLE_HIGH_OUT = Out(1, init=1)  # type: ignore[call-arg]
"""A line that rests high."""
_CYCLE = 1 << FRACTION_BITS  # one clock cycle in units of the divisor


class _BitTimer:
    """Counts the cycles of a bit with the divisor's fraction carried on, so that no error adds up."""

    def __init__(self, m: Module, divisor: Signal, name: str) -> None:
        self._m = m
        self._divisor = divisor
        self._left = Signal(DIVISOR_BITS + 1, name=f"{name}_left", reset_less=True)
        self.tick = Signal(name=f"{name}_tick")
        m.d.comb += self.tick.eq(self._left < 2 * _CYCLE)

    def start(self, shift: int) -> None:
        """The first tick comes after a bit (shift 0) or half a bit (shift 1)."""
        self._m.d.sync += self._left.eq(self._divisor >> shift)

    def run(self) -> None:
        """Count on; a tick after each bit from then on."""
        self._m.d.sync += self._left.eq(self._left - _CYCLE)
        with self._m.If(self.tick):
            self._m.d.sync += self._left.eq(self._left + self._divisor - _CYCLE)


class UartReceiver(wiring.Component):
    """Takes bytes off a line.

    Each bit is the majority of three samples around its middle. A start bit that is over in its middle is taken for
    noise. A byte without stop bit is dropped; the receiver then waits until the line is high. The receiver cannot be
    held up, so its output is a strobe and no stream. A byte comes in the middle of its stop bit, `latency` cycles late.
    A change of `divisor` counts from the next bit.

    Members
    -------
    rx: the line, asynchronous.
    divisor: length of a bit in sixteenths of a clock cycle, at least LEAST_DIVISOR.
    valid, data: a byte.
    framing: a byte was dropped because its stop bit was low.
    broken: the line has been low for BREAK_BITS bits; once for each break.
    """

    rx: Signal
    divisor: Signal
    valid: Signal
    data: Signal
    framing: Signal
    broken: Signal

    def __init__(self) -> None:
        super().__init__(
            {
                "rx": IDLE_HIGH_IN,
                "divisor": In(DIVISOR_BITS),
                "valid": Out(1),
                "data": Out(DATA_BITS),
                "framing": Out(1),
                "broken": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a level on the line to the output that it causes: synchroniser, samples, majority, output."""
        return 2 + (SAMPLES // 2 + 1) + 1 + 1

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        line, level = Signal(init=1), Signal(init=1)
        recent = Signal(SAMPLES, init=(1 << SAMPLES) - 1)
        m.submodules.synchronise = FFSynchronizer(self.rx, line, init=1)
        a, b, c = recent
        m.d.sync += [recent.eq(Cat(line, recent)), level.eq((a & b) | (a & c) | (b & c))]

        timer = _BitTimer(m, self.divisor, "receive")
        bits = Signal(range(BREAK_BITS + 1))
        low = Signal()  # no bit since the start bit was high
        m.d.sync += [self.valid.eq(0), self.framing.eq(0), self.broken.eq(0)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [bits.eq(0), low.eq(1)]
                timer.start(1)
                with m.If(~level):
                    m.next = "BITS"
            with m.State("BITS"):
                timer.run()
                with m.If(timer.tick):
                    m.d.sync += [bits.eq(bits + 1), low.eq(low & ~level)]
                    with m.If(bits == FRAME_BITS - 1):
                        m.d.sync += [self.valid.eq(level), self.framing.eq(~level)]
                        m.next = "HIGH"
                    with m.Else():
                        m.d.sync += self.data.eq(Cat(self.data[1:], level))
                    with m.If((bits == 0) & level):
                        m.next = "IDLE"
            with m.State("HIGH"):
                timer.run()
                with m.If(level):
                    m.next = "IDLE"
                with m.Elif(timer.tick & (bits != BREAK_BITS)):
                    m.d.sync += [bits.eq(bits + 1), self.broken.eq(low & (bits == BREAK_BITS - 1))]
        return m


class UartTransmitter(wiring.Component):
    """Puts bytes on a line, FRAME_BITS bits each, back to back if they come in time; one waits for its turn inside.

    A change of `divisor` counts from the next bit. Reset lets go of the line at once.

    Members
    -------
    i: bytes.
    divisor: as UartReceiver's.
    tx: the line.
    idle: nothing is on the line or waits in the transmitter.
    """

    i: stream.Interface
    divisor: Signal
    tx: Signal
    idle: Signal

    def __init__(self) -> None:
        super().__init__(
            {
                "i": In(stream.Signature(DATA_BITS)),
                "divisor": In(DIVISOR_BITS),
                "tx": IDLE_HIGH_OUT,
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        timer = _BitTimer(m, self.divisor, "send")
        shift = Signal(FRAME_BITS - 1)  # data and stop bit that follow the bit on the line
        left = Signal(range(FRAME_BITS + 1))
        held, full = Signal(DATA_BITS, reset_less=True), Signal()  # the next byte, so that `ready` is a register
        load = Signal()
        m.d.comb += [self.idle.eq((left == 0) & ~full & ~self.i.valid), self.i.ready.eq(~full)]
        with m.If(left == 0):
            m.d.comb += load.eq(1)
            timer.start(0)
        with m.Else():
            timer.run()
            with m.If(timer.tick):
                m.d.comb += load.eq(left == 1)
                m.d.sync += [self.tx.eq(shift[0]), shift.eq(Cat(shift[1:], 1)), left.eq(left - 1)]
        with m.If(load & full):
            m.d.sync += [self.tx.eq(0), shift.eq(Cat(held, 1)), left.eq(FRAME_BITS), full.eq(0)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [held.eq(self.i.payload), full.eq(1)]
        return m
