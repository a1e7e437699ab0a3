from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec import frame
from statecell.spec.commands import Opcode, Status
from statecell.spec.geometry import Geometry
from statecell.spec.serial import SerialLink
from statecell_hw.link.answers import UNREAD, Answers
from tests.hw.streams import MAX_CYCLES, receive, send, simulate, words_of

LINK = SerialLink(answer_bytes=256, answers=7)


def geometry(link_bytes: int) -> Geometry:
    return Geometry(
        name="least", head_dim=32, rows=8, lanes=1, slots=1, pages_per_slot=1, page_rows=8, link_bytes=link_bytes
    )


def answer(sequence: int, blocks: int = 0, status: Status = Status.OK, opcode: Opcode = Opcode.ATTEND) -> bytes:
    """A response's header and payload."""
    header = frame.pack_header(
        frame.RESPONSE_HEADER, version=frame.VERSION, opcode=opcode | frame.RESPONSE, sequence=sequence,
        blocks=blocks, status=status,
    )
    return header + random.Random(sequence).randbytes(frame.BLOCK * blocks)


class Talk:
    """What happens to the block, step by step, and what must leave it."""

    def __init__(self, link_bytes: int, pause: float = 0.0) -> None:
        self.link_bytes = link_bytes
        self.pause = pause
        self.dut = Answers(geometry(link_bytes), LINK)
        self.steps: list[tuple[str, Any]] = []
        self.due: list[bytes] = []
        self.sent: dict[int, bytes] = {}

    def begin(self, sequence: int) -> None:
        self.steps.append(("begin", sequence))

    def answer(self, body: bytes, *, cut: int | None = None) -> None:
        sealed = frame.seal(body, self.link_bytes)
        self.steps.append(("answer", sealed))
        on_wire = sealed[: len(body) + frame.CRC_BYTES][:cut]
        self.due.append(on_wire)
        self.sent[int.from_bytes(body[2:4], "little")] = on_wire

    def repeat(self, sequence: int, *, known: bool = True) -> None:
        self.steps.append(("repeat", sequence))
        if known:
            self.due.append(self.sent[sequence])

    def run(self, connects: int = 0) -> None:
        dut, rng = self.dut, random.Random(2)
        count: list[int] = []
        done: list[bool] = []

        async def drive(ctx: Any) -> None:
            for what, value in self.steps:
                if what == "answer":
                    await send(ctx, dut.i, words_of(value, self.link_bytes), rng, self.pause)
                elif what == "repeat":
                    await send(ctx, dut.repeat, [value], rng, self.pause)
                else:
                    ctx.set(dut.sequence, value)
                    ctx.set(dut.begin, 1)
                    await ctx.tick()
                    ctx.set(dut.begin, 0)

        async def sink(ctx: Any) -> None:
            for data in self.due:
                for i, byte in enumerate(data):
                    got = await receive(ctx, dut.o, random.Random(4), self.pause)
                    assert (got.data, got.last) == (byte, i == len(data) - 1), (data.hex(), i)
            ctx.set(dut.o.ready, 1)
            for _ in range(50):
                assert not ctx.get(dut.o.valid)
                await ctx.tick()
            assert ctx.get(dut.idle)
            done.append(True)

        async def watch(ctx: Any) -> None:
            while not done:
                _, _, connected = await ctx.tick().sample(dut.connected)
                count.extend([1] * connected)

        simulate(dut, drive, sink, watch, max_cycles=MAX_CYCLES)
        assert len(count) == connects


@pytest.mark.parametrize("pause", [0.0, 0.3])
@pytest.mark.parametrize("link_bytes", [2, 4, 8, 16])
def test_answers_are_sent_and_sent_again(link_bytes: int, pause: float) -> None:
    rng = random.Random(link_bytes)
    talk = Talk(link_bytes, pause)
    talk.begin(499)
    talk.repeat(499, known=False)
    for sequence in range(500, 540):
        talk.answer(answer(sequence, rng.choice((0, 0, 1, 3))))
        if sequence > 502:
            # Three answers of 68 bytes are always there.
            for past in sorted(rng.sample(range(3), rng.randrange(3))):
                talk.repeat(sequence - past)
        talk.repeat(sequence + 1, known=False)
    talk.run()


def test_seven_short_answers_are_kept_and_no_more() -> None:
    talk = Talk(8)
    talk.begin(frame.SEQUENCES - 4)
    numbers = [(frame.SEQUENCES - 3 + i) % frame.SEQUENCES for i in range(9)]
    for sequence in numbers:
        talk.answer(answer(sequence))
    for sequence in numbers[2:]:
        talk.repeat(sequence)
    talk.repeat(numbers[1], known=False)
    talk.repeat((numbers[-1] + 1) % frame.SEQUENCES, known=False)
    talk.run()


def test_answers_to_unread_frames_leave_no_trace() -> None:
    talk = Talk(16)
    talk.begin(9)
    talk.answer(answer(10, 3))
    for _ in range(20):
        for status in UNREAD:
            talk.answer(answer(0xFFFF, status=status, opcode=Opcode.INFO))
            talk.answer(answer(0xFFFF, opcode=Opcode.CONNECT))
    talk.repeat(10)
    talk.answer(answer(11, 2, status=Status.FULL))
    talk.repeat(10)
    talk.repeat(11)
    talk.run(connects=60)


def test_a_session_begins_without_old_answers() -> None:
    talk = Talk(8)
    talk.begin(9)
    talk.answer(answer(10))
    talk.begin(9)
    talk.repeat(10, known=False)
    talk.answer(answer(10, 1))
    talk.repeat(10)
    talk.run()


def test_an_answer_that_does_not_fit_is_cut() -> None:
    talk = Talk(4)
    talk.begin(9)
    talk.answer(answer(10, 40), cut=LINK.answer_bytes)
    talk.begin(10)
    talk.answer(answer(11, 2))
    talk.repeat(11)
    talk.run()
