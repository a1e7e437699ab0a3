"""The board's top level at its pins: rates, breaks, silence, sessions and the outputs for LEDs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statecell.link import cobs
from statecell.link.framing import Request, Response
from statecell.link.window import restore, strip
from statecell.spec.commands import Opcode, Status
from statecell.spec.geometry import Geometry
from statecell.spec.serial import LEAST_DIVISOR, START_BAUD, SerialLink
from statecell_hw.serial import SerialTop
from tests.hw.streams import simulate

LINK_BYTES = 2
CLOCK_HZ = 16 * START_BAUD
START, FAST = 16, 8  # cycles of a bit
SILENCE = 12_000
SESSION = 77
QUIET = 400


G = Geometry(name="least", head_dim=32, rows=8, lanes=1, slots=1, pages_per_slot=1, page_rows=8, link_bytes=LINK_BYTES)


def top() -> SerialTop:
    made = SerialTop(G, clock_hz=CLOCK_HZ, link=SerialLink(request_bytes=128, answer_bytes=128, answers=3))
    made.silence_cycles = SILENCE
    return made


class Host:
    """The other end of the wires."""

    def __init__(self, ctx: Any, dut: SerialTop) -> None:
        self.ctx = ctx
        self.dut = dut
        self.bit = START
        self.levels: list[int] = []  # of tx, cycle by cycle

    async def hold(self, level: int, cycles: int) -> None:
        self.ctx.set(self.dut.rx, level)
        for _ in range(cycles):
            self.levels.append(self.ctx.get(self.dut.tx))
            await self.ctx.tick()

    async def write(self, data: bytes) -> None:
        for byte in data:
            for level in (0, *((byte >> i) & 1 for i in range(8)), 1):
                await self.hold(level, self.bit)

    async def read(self) -> bytes:
        """Bytes on tx since the last call; waits until the line has rested."""
        while self.ctx.get(self.dut.busy) or 0 in self.levels[-QUIET:] or len(self.levels) < QUIET:
            await self.hold(1, 1)
        at, out = 0, bytearray()
        while 0 in self.levels[at:]:
            at = self.levels.index(0, at)
            middle = [at + self.bit // 2 + i * self.bit for i in range(10)]
            out.append(sum(self.levels[m] << i for i, m in enumerate(middle[1:9])))
            at = middle[9]
        self.levels.clear()
        return bytes(out)

    async def ask(self, request: Request, sequence: int) -> Response | None:
        """One command; None if nothing that can be read comes back."""
        await self.write(b"\0" + cobs.encode(strip(request.encode(sequence, LINK_BYTES), LINK_BYTES)))
        wire = (await self.read()).rstrip(b"\0")
        return restore(cobs.decode(wire), LINK_BYTES)[1] if wire else None

    async def connect(self, bit: int = 0, running: int = 0) -> None:
        request = Request(opcode=Opcode.CONNECT, slot=running, first=SESSION, count=bit)
        answer = await self.ask(request, 9)
        assert answer is not None and (answer.status, answer.value) == (Status.OK, SESSION)


def run(bench: Callable[[Host], Any]) -> None:
    dut = top()

    async def host(ctx: Any) -> None:
        await bench(Host(ctx, dut))

    simulate(dut, host)


OPEN = Request(opcode=Opcode.OPEN)


async def fast(host: Host) -> None:
    """A session at the fast rate, with a slot open."""
    await host.connect(LEAST_DIVISOR)
    host.bit = FAST
    answer = await host.ask(OPEN, 10)
    assert answer is not None and answer.status is Status.OK


def test_the_rate_changes_when_the_answer_is_out_and_a_break_brings_it_back() -> None:
    async def bench(host: Host) -> None:
        ctx, dut = host.ctx, host.dut
        assert not ctx.get(dut.link) and not ctx.get(dut.busy) and not ctx.get(dut.error)
        assert await host.ask(OPEN, 10) is None  # no session
        await fast(host)
        assert ctx.get(dut.link) and not ctx.get(dut.error)
        await host.write(b"\x09\xc1\x10")  # a frame begins
        host.bit = START
        await host.write(b"\0")  # at half the rate a zero byte is a break
        await host.connect(running=SESSION)
        repeated = await host.ask(OPEN, 10)
        assert repeated is not None and repeated.status is Status.OK, "the session and its answers must stay"
        again = await host.ask(OPEN, 11)
        assert again is not None and again.status is Status.SLOT_OPEN

    run(bench)


def test_silence_brings_the_first_rate_back() -> None:
    async def bench(host: Host) -> None:
        await fast(host)
        await host.hold(1, SILENCE // 2)
        assert await host.ask(OPEN, 11) is not None, "too early"
        await host.hold(1, SILENCE + 10)
        host.levels.clear()
        host.bit = START
        await host.connect(running=SESSION)

    run(bench)


@pytest.mark.parametrize("bad", [b"\x02\0", None])
def test_the_error_output_shows_damage_until_a_good_frame(bad: bytes | None) -> None:
    """A frame that is damaged, and a byte without stop bit."""

    async def bench(host: Host) -> None:
        ctx, dut = host.ctx, host.dut
        await host.connect()
        if bad is None:
            await host.hold(0, 10 * START)
            await host.hold(1, 2 * START)
        else:
            wire = bytearray(cobs.encode(strip(OPEN.encode(10, LINK_BYTES), LINK_BYTES)))
            wire[-3] ^= 0x11
            await host.write(bytes(wire))
            await host.read()
        assert ctx.get(dut.error) and ctx.get(dut.link)
        assert await host.ask(OPEN, 10) is not None
        assert not ctx.get(dut.error)

    run(bench)


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")  # the refused one
def test_a_clock_that_is_too_slow_is_refused() -> None:
    with pytest.raises(ValueError, match="a bit takes 8 to 4095 cycles"):
        SerialTop(G, clock_hz=4 * START_BAUD)
