from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.link.framing import Request
from statecell.spec import frame
from statecell.spec.commands import Opcode
from statecell.spec.geometry import Geometry
from statecell.spec.serial import SerialLink
from statecell_hw.link.intake import Intake
from tests.hw.streams import receive, send, simulate, words_of

SESSION = 0x1234
LINK = SerialLink(answers=3)


def geometry(link_bytes: int) -> Geometry:
    return Geometry(
        name="least", head_dim=32, rows=8, lanes=1, slots=1, pages_per_slot=1, page_rows=8, link_bytes=link_bytes
    )


def wire(request: Request, sequence: int, link_bytes: int) -> bytes:
    """A frame as it is on the wire: without the zeros behind the CRC."""
    data = request.encode(sequence, link_bytes)
    return data[: len(data) - frame.trailer_bytes(link_bytes) + frame.CRC_BYTES]


class Talk:
    """Frames to the intake, the device's verdict on each that gets through, and what must come of it."""

    def __init__(self, link_bytes: int, pause: float = 0.0) -> None:
        self.link_bytes = link_bytes
        self.pause = pause
        self.dut = Intake(geometry(link_bytes), LINK)
        self.frames: list[bytes] = []
        self.verdicts: list[tuple[str, int]] = []  # of the frames that get through, and the session of a CONNECT
        self.passed: list[bytes] = []
        self.repeats: list[int] = []
        self.begins: list[int] = []

    def say(self, request: Request, sequence: int, outcome: str = "drop", session: int = 0) -> None:
        data = wire(request, sequence, self.link_bytes)
        self.frames.append(data)
        if outcome in ("accept", "reject", "connect"):
            self.passed.append(data)
            self.verdicts.append((outcome, session))
        if outcome == "repeat":
            self.repeats.append(sequence)

    def run(self) -> None:
        dut, rng = self.dut, random.Random(3)
        repeats: list[int] = []
        begins: list[int] = []
        done: list[bool] = []

        async def source(ctx: Any) -> None:
            for data in self.frames:
                payloads = [{"data": byte, "last": i == len(data) - 1} for i, byte in enumerate(data)]
                await send(ctx, dut.i, payloads, rng, self.pause)
            await ctx.tick().repeat(40)
            done.append(True)

        async def device(ctx: Any) -> None:
            for data, (outcome, session) in zip(self.passed, self.verdicts, strict=True):
                padded = data.ljust(-(-len(data) // self.link_bytes) * self.link_bytes, b"\0")
                for word in words_of(padded, self.link_bytes):
                    got = await receive(ctx, dut.o, random.Random(5), self.pause)
                    assert (got.data, got.last) == (word["data"], word["last"])
                await ctx.tick().repeat(rng.randrange(1, 9))
                strobe = dut.rejected if outcome == "reject" else dut.accepted
                ctx.set(strobe, 1)
                ctx.set(dut.connect, outcome == "connect")
                ctx.set(dut.token, session)
                await ctx.tick()
                ctx.set(strobe, 0)
                ctx.set(dut.connect, 0)

        async def repeater(ctx: Any) -> None:
            while not done:
                ctx.set(dut.repeat.ready, rng.random() < 0.5)
                _, _, valid, ready, number = await ctx.tick().sample(
                    dut.repeat.valid, dut.repeat.ready, dut.repeat.payload
                )
                if valid and ready:
                    repeats.append(number)

        async def watch(ctx: Any) -> None:
            while not done:
                _, _, begin, sequence = await ctx.tick().sample(dut.begin, dut.sequence)
                if begin:
                    begins.append(sequence)
            assert ctx.get(dut.idle)

        simulate(dut, source, device, repeater, watch)
        assert repeats == self.repeats
        assert begins == self.begins


OPEN = Request(opcode=Opcode.OPEN)
APPEND = Request(opcode=Opcode.APPEND, count=1, payload=bytes(range(128)))
CONNECT = Request(opcode=Opcode.CONNECT, first=SESSION)


@pytest.mark.parametrize("pause", [0.0, 0.3])
@pytest.mark.parametrize("link_bytes", [2, 4, 8, 16])
def test_each_command_passes_once_and_in_its_turn(link_bytes: int, pause: float) -> None:
    talk = Talk(link_bytes, pause)
    talk.say(OPEN, 0)  # no session yet
    talk.say(CONNECT, 99, "connect", SESSION)
    talk.begins.append(99)
    talk.say(OPEN, 100, "accept")
    talk.say(APPEND, 101, "accept")
    talk.say(APPEND, 101, "repeat")
    talk.say(APPEND, 103)  # 102 was lost
    talk.say(APPEND, 102, "reject")  # damaged
    talk.say(APPEND, 103)
    talk.say(APPEND, 102, "accept")
    talk.say(OPEN, 100, "repeat")
    talk.say(APPEND, 102, "repeat")
    talk.say(OPEN, 103, "accept")
    talk.say(OPEN, 104, "accept")
    talk.say(OPEN, 101)  # older than the answers that are kept
    talk.say(OPEN, 105 + (1 << 15))  # no request has such a number
    talk.say(OPEN, 105, "accept")
    talk.run()


def test_the_count_wraps() -> None:
    talk = Talk(8)
    talk.say(CONNECT, frame.SEQUENCES - 2, "connect", SESSION)
    talk.begins.append(frame.SEQUENCES - 2)
    talk.say(OPEN, frame.SEQUENCES - 1, "accept")
    talk.say(OPEN, 0, "accept")
    talk.say(OPEN, frame.SEQUENCES - 1, "repeat")
    talk.say(OPEN, 1, "accept")
    talk.run()


def test_connecting_again_keeps_the_session_and_another_session_begins_anew() -> None:
    talk = Talk(4)
    talk.say(CONNECT, 9, "connect", SESSION)
    talk.begins.append(9)
    talk.say(OPEN, 10, "accept")
    talk.say(CONNECT, 500, "connect", SESSION)
    talk.say(OPEN, 11, "accept")
    talk.say(Request(opcode=Opcode.CONNECT), 600, "accept")  # refused: read, but not carried out
    talk.say(CONNECT, 700, "reject")  # damaged
    talk.say(OPEN, 12, "accept")
    talk.say(CONNECT, 40, "connect", SESSION + 1)
    talk.begins.append(40)
    talk.say(OPEN, 13)
    talk.say(OPEN, 41, "accept")
    talk.run()


def test_short_frames_are_dropped() -> None:
    talk = Talk(8)
    talk.frames += [b"\1", wire(CONNECT, 1, 8)[:4]]
    talk.say(CONNECT, 9, "connect", SESSION)
    talk.begins.append(9)
    talk.frames += [wire(OPEN, 10, 8)[:3]]
    talk.frames.append(wire(OPEN, 10, 8)[:5])  # long enough to be judged: the device finds what it lacks
    talk.passed.append(talk.frames[-1])
    talk.verdicts.append(("reject", 0))
    talk.say(OPEN, 10, "accept")
    talk.run()
