"""The small device word by word: a conversation with the golden device, and what the link must know."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from statecell.device import append_request, attend_request, map_request
from statecell.link.framing import Request, decode
from statecell.spec import formats
from statecell.spec.commands import COUNTER_FIELDS, INFO_FIELDS, Flag, Opcode, Status
from statecell.spec.geometry import Geometry
from statecell.spec.serial import SerialLink
from statecell_hw.control.responder import device_info
from statecell_hw.small.cell import SmallCell
from statecell_sim.golden import GoldenDevice
from tests.hw.streams import receive, send, simulate, words_of

G = Geometry(
    name="least", head_dim=32, rows=16, lanes=3, slots=2, pages_per_slot=4, page_rows=4, link_bytes=2, query_bits=12,
    small=True,
)  # fmt: skip
BUILD = 0x0123456789ABCDEF
MAX_CYCLES = 200_000


def device(**arguments: Any) -> SmallCell:
    """A small device whose variables hold anything at first, as after a reset in the middle of a command."""
    dut = SmallCell(G, **arguments)
    program, rng = dut.machine.program, random.Random(8)
    info = range(program.symbols["info"], program.symbols["info"] + len(INFO_FIELDS))
    data = [word if word or place in info else rng.getrandbits(32) for place, word in enumerate(program.data)]
    dut.machine.program = replace(program, data=tuple(data))
    return dut


def vectors(rng: np.random.Generator, count: int) -> Any:
    return rng.integers(-9000, 9000, (count, G.head_dim)).astype(np.int16)


def conversation() -> list[Request]:
    """Every command, some refused."""
    rng = np.random.default_rng(6)
    tokens = vectors(rng, 2), vectors(rng, 2)
    return [
        Request(opcode=Opcode.OPEN, slot=1),
        Request(opcode=Opcode.OPEN, slot=1),
        Request(opcode=Opcode.OPEN, slot=2),
        map_request(1, [3, 1]),
        map_request(1, [4]),
        append_request(1, tokens[0][:1], tokens[1][:1], Flag.WIDE),
        append_request(1, tokens[0][1:], tokens[1][1:]),
        append_request(1, tokens[0][1:], tokens[1][1:], Flag.ZERO_POINT),
        attend_request(1, vectors(rng, 1), [0], [3], 24),
        attend_request(1, vectors(rng, 1), [0], [4], 24),
        Request(opcode=Opcode.READ_ROWS, slot=1, first=1, count=2),
        Request(opcode=Opcode.TRUNCATE, slot=1, count=2),
        Request(opcode=Opcode.CONNECT, first=77, count=200),
        Request(opcode=Opcode.FREE, slot=1),
        Request(opcode=Opcode.RESET),
    ]  # fmt: skip


def exchange(dut: SmallCell, frames: list[bytes], pause: float) -> tuple[list[bytes], list[tuple[int, ...]]]:
    """Answers, and of each cycle with one of them `accepted`, `rejected`, `connect`, `token` and `divisor`."""
    answers: list[bytes] = []
    verdicts: list[tuple[int, ...]] = []
    words = [word for data in frames for word in words_of(data, G.link_bytes)]

    async def source(ctx: Any) -> None:
        await send(ctx, dut.i, words, random.Random(1), pause)

    async def sink(ctx: Any) -> None:
        data = b""
        while len(answers) < len(frames):
            word = await receive(ctx, dut.o, random.Random(2), pause)
            assert ctx.get(dut.link.answering) != word.last
            data += word.data.to_bytes(G.link_bytes, "little")
            if word.last:
                answers.append(data)
                data = b""

    async def watch(ctx: Any) -> None:
        link = dut.link
        while True:
            pulses = tuple(ctx.get(x) for x in (link.accepted, link.rejected, link.connect))
            if any(pulses):
                verdicts.append((*pulses, ctx.get(link.token), ctx.get(link.divisor)))
                assert not ctx.get(link.answering)
            await ctx.tick()

    simulate(dut, source, sink, background=[watch], max_cycles=MAX_CYCLES)
    return answers, verdicts


@pytest.mark.parametrize("pause", [0.3])
def test_a_conversation_equals_the_golden_device(pause: float) -> None:
    golden = GoldenDevice(G)
    requests = conversation()
    frames = [request.encode(number, G.link_bytes) for number, request in enumerate(requests)]
    expected = [golden.answer(request) for request in requests]
    assert {answer.status for answer in expected} > {Status.OK, Status.SLOT_OPEN, Status.BAD_SLOT, Status.BAD_PAGE}
    damaged = bytearray(frames[0])
    damaged[-3] ^= 1
    answers, verdicts = exchange(device(), [*frames, bytes(damaged), frames[0][:8]], pause)
    for number, (back, due) in enumerate(zip(answers, expected, strict=False)):
        response = decode(back, G.link_bytes)
        assert (response.sequence, response.status, response.value) == (number, due.status, due.value)
        assert response.payload == due.payload
    broken = [decode(back, G.link_bytes) for back in answers[len(frames) :]]
    assert [(x.sequence, x.status) for x in broken] == [(0, Status.BAD_CRC), (0xFFFF, Status.BAD_FRAME)]
    at = [r.opcode for r in requests].index(Opcode.CONNECT)
    assert [v[:3] for v in verdicts] == [(1, 0, int(n == at)) for n in range(len(frames))] + [(0, 1, 0)] * 2
    assert verdicts[at][3:] == (77, 200)


def test_info_counters_and_the_cycles_of_a_vector() -> None:
    rng = np.random.default_rng(7)
    k, v = vectors(rng, 3), vectors(rng, 3)
    requests = [
        Request(opcode=Opcode.INFO), Request(opcode=Opcode.OPEN), map_request(0, [0]), append_request(0, k, v),
        attend_request(0, k[:1], [1], [3], 20), Request(opcode=Opcode.COUNTERS, count=1),
        Request(opcode=Opcode.COUNTERS),
    ]  # fmt: skip
    link = SerialLink()
    dut = device(build_hash=BUILD, serial=link)
    frames = [request.encode(number, G.link_bytes) for number, request in enumerate(requests)]
    answers, _ = exchange(dut, frames, 0.0)
    info = np.frombuffer(decode(answers[0], G.link_bytes).payload, "<u4")
    assert info.tolist() == list(vars(device_info(G, BUILD, link)).values())
    assert info[-1] == 16, "a small device stores more slowly than the fastest wire brings vectors"
    before, after = (
        dict(zip(COUNTER_FIELDS, np.frombuffer(decode(x, G.link_bytes).payload, "<u8").tolist(), strict=True))
        for x in answers[5:]
    )
    words = [sum(len(data) for data in part) // G.link_bytes for part in (frames[:5], answers[:5])]
    assert (before["link_in"], before["link_out"]) == tuple(words)
    assert (before["key_rows"], before["value_rows"], before["rows_written"], before["passes"]) == (2, 2, 6, 1)
    assert before["stalls"] == 0 and after["passes"] == 0 and 0 < after["cycles"] < 3000
    # six vectors and one query, which is stored likewise
    assert 7 * dut.vector_cycles > before["cycles"] > 10_000
    assert dut.vector_cycles == G.head_dim * formats.VECTOR_BITS // 8 * 10 * 16
