from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.link import cobs
from statecell_hw.link.cobs import CobsDecoder, CobsEncoder
from tests.hw.streams import receive, send, simulate


def messages(rng: random.Random) -> list[bytes]:
    """Lengths around a block's limit, runs of zeros, zeros at both ends."""
    sizes = [1, 2, 3, 20, 252, 253, 254, 255, 256, 508, 509, 600]
    full = [bytes(rng.randrange(1, 256) for _ in range(n)) for n in sizes]
    zeros = [bytes(rng.choice((0, 0, 0, rng.randrange(256))) for _ in range(n)) for n in sizes]
    return [*full, *zeros, b"\0", b"\0\0", full[6] + b"\0", b"\0" + full[6], full[5] + b"\0", full[6] + b"\0" + full[6]]


@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_encodes_as_the_software(pause: float) -> None:
    rng = random.Random(3)
    frames = messages(rng)
    dut = CobsEncoder()

    async def source(ctx: Any) -> None:
        for frame in frames:
            payloads = [{"data": byte, "last": i == len(frame) - 1} for i, byte in enumerate(frame)]
            await send(ctx, dut.i, payloads, rng, pause)

    async def sink(ctx: Any) -> None:
        assert ctx.get(dut.idle)
        for frame in frames:
            for byte in cobs.encode(frame):
                assert await receive(ctx, dut.o, random.Random(4), pause) == byte
        assert ctx.get(dut.idle)

    cycles = simulate(dut, source, sink)
    if not pause:
        blocks = sum(len(cobs.encode(frame)) for frame in frames)
        assert cycles <= 4 * blocks


@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_decodes_as_the_software(pause: float) -> None:
    rng = random.Random(5)
    frames = messages(rng)
    dut = CobsDecoder()
    wire = b"\0\0" + b"".join(cobs.encode(frame) + b"\0" * rng.randrange(3) for frame in frames)

    async def source(ctx: Any) -> None:
        await send(ctx, dut.i, list(wire), rng, pause)

    async def sink(ctx: Any) -> None:
        for frame in frames:
            for i, byte in enumerate(frame):
                got = await receive(ctx, dut.o, random.Random(6), pause)
                assert (got.data, got.last) == (byte, i == len(frame) - 1)

    cycles = simulate(dut, source, sink)
    if not pause:
        assert cycles <= len(wire) + 2


def test_a_delimiter_inside_a_block_ends_the_frame() -> None:
    dut = CobsDecoder()
    wire = b"\x05\x11\x22\0" + cobs.encode(b"\x33\0\x44") + b"\x01\0" + cobs.encode(b"\x55")
    due = [(0x11, 0), (0x22, 1), (0x33, 0), (0, 0), (0x44, 1), (0x55, 1)]

    async def source(ctx: Any) -> None:
        await send(ctx, dut.i, list(wire), random.Random(1), 0)

    async def sink(ctx: Any) -> None:
        for data, last in due:
            got = await receive(ctx, dut.o, random.Random(2), 0)
            assert (got.data, got.last) == (data, last)

    simulate(dut, source, sink)
