"""Both ends of a stream in a cocotb bench, and the transport that runs the real driver inside one."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.task import Task, resume
from cocotb.triggers import RisingEdge

from statecell.link.errors import LinkTimeout

CLOCK_NS = 10
QUIET_CYCLES = 256  # a design that is silent for so long after a time-out has no response left to give


async def start(dut: Any) -> None:
    """Start the clock and reset the design for two cycles, with its streams `i` and `o` quiet."""
    for name in ("i__valid", "o__ready"):
        if hasattr(dut, name):
            getattr(dut, name).value = 0
    dut.rst.value = 1
    Clock(dut.clk, CLOCK_NS, unit="ns").start()
    for _ in range(2):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    await RisingEdge(dut.clk)


class StreamSource:
    """Sends words into the input stream `name` of a design.

    `idle` is the probability of a pause before a word, in each cycle, drawn from `seed`. A word that is offered stays
    until it is taken; after `watchdog` cycles without that the bench fails.
    """

    def __init__(self, dut: Any, name: str = "i", *, idle: float = 0.0, seed: int = 0, watchdog: int = 100_000) -> None:
        self.clk = dut.clk
        self.payload = getattr(dut, f"{name}__payload")
        self.valid = getattr(dut, f"{name}__valid")
        self.ready = getattr(dut, f"{name}__ready")
        self.name = name
        self.idle = idle
        self.watchdog = watchdog
        self._rng = random.Random(f"source {name} {seed}")
        self.valid.value = 0

    async def send(self, words: Sequence[int]) -> None:
        """Send payloads in order; returns in the cycle after the last was taken."""
        for word in words:
            while self._rng.random() < self.idle:
                self.valid.value = 0
                await RisingEdge(self.clk)
            self.payload.value = word
            self.valid.value = 1
            for _ in range(self.watchdog):
                await RisingEdge(self.clk)
                if self.ready.value == 1:
                    break
            else:
                raise AssertionError(f"stream {self.name}: a word was not taken in {self.watchdog} cycles")
        self.valid.value = 0


class StreamSink:
    """Takes words from the output stream `name` of a design.

    `back_pressure` is the probability that `ready` is low, in each cycle, drawn from `seed`. A word that changes or
    vanishes while it waits fails the bench, as does a silence of `watchdog` cycles.
    """

    def __init__(
        self, dut: Any, name: str = "o", *, back_pressure: float = 0.0, seed: int = 0, watchdog: int = 100_000
    ) -> None:
        self.clk = dut.clk
        self.payload = getattr(dut, f"{name}__payload")
        self.valid = getattr(dut, f"{name}__valid")
        self.ready = getattr(dut, f"{name}__ready")
        self.name = name
        self.back_pressure = back_pressure
        self.watchdog = watchdog
        self._rng = random.Random(f"sink {name} {seed}")
        self._held: int | None = None
        self.ready.value = 0

    async def poll(self) -> int | None:
        """One cycle: the payload that was taken in it, or None. `ready` is low after it, until the next call."""
        accept = self._rng.random() >= self.back_pressure
        self.ready.value = accept
        await RisingEdge(self.clk)
        word = int(self.payload.value.to_unsigned()) if self.valid.value == 1 else None
        if self._held is not None and word != self._held:
            raise AssertionError(f"stream {self.name}: the waiting word {self._held:#x} became {word}")
        self._held = None if accept else word
        self.ready.value = 0
        return word if accept else None

    async def receive(self) -> int:
        """The payload of the next word."""
        for _ in range(self.watchdog):
            word = await self.poll()
            if word is not None:
                return word
        raise AssertionError(f"stream {self.name}: no word in {self.watchdog} cycles")


class CocotbTransport:
    """The Transport of a design in a bench, for a driver that runs in `await bridge(function)()`.

    One resume for each exchange: all frames go out and all responses come in on the cocotb side. `timeout` is
    wall-clock time, as everywhere; `max_cycles` bounds one exchange besides.
    """

    def __init__(self, dut: Any, source: StreamSource, sink: StreamSink, *, max_cycles: int = 1_000_000) -> None:
        self.source = source
        self.sink = sink
        self.link_bytes = (len(dut.i__payload) - 1) // 8
        self.max_cycles = max_cycles
        self._sender: Task[None] | None = None
        self._blocking = resume(self.converse)

    def exchange(self, frames: Sequence[bytes], *, timeout: float) -> list[bytes]:
        """One response for each frame, in order; raises as the Transport protocol says."""
        for index, frame in enumerate(frames):
            if not frame or len(frame) % self.link_bytes:
                raise ValueError(
                    f"Frame {index} has {len(frame)} bytes; it must be a multiple of the link word, "
                    f"{self.link_bytes} bytes."
                )
        return self._blocking(frames, timeout)

    def close(self) -> None:
        """Nothing to release: the bench ends the simulation."""

    async def converse(self, frames: Sequence[bytes], timeout: float) -> list[bytes]:
        """`exchange` for a coroutine."""
        deadline = time.monotonic() + timeout
        quiet = 0
        while self._sender is not None and quiet < QUIET_CYCLES:  # the last exchange was cut short
            taken = await self.sink.poll() is not None or not self._sender.done()
            quiet = 0 if taken else quiet + 1
        size = self.link_bytes
        words = [
            int.from_bytes(frame[at : at + size], "little") | (at + size == len(frame)) << (8 * size)
            for frame in frames
            for at in range(0, len(frame), size)
        ]
        self._sender = cocotb.start_soon(self.source.send(words))
        responses: list[bytes] = []
        current = bytearray()
        for _ in range(self.max_cycles):
            if len(responses) == len(frames) and self._sender.done():
                self._sender = None
                return responses
            word = await self.sink.poll()
            if word is not None:
                current += (word & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
                if word >> (8 * size):
                    responses.append(bytes(current))
                    current.clear()
            if time.monotonic() >= deadline:
                break
        raise LinkTimeout(
            f"The design in the bench did not answer in time: {len(responses)} of {len(frames)} responses came."
        )
