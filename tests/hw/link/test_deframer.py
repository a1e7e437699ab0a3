from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec import frame
from statecell.spec.commands import Status
from statecell.spec.geometry import Geometry
from statecell_hw.link.deframer import UNREADABLE, Deframer
from tests.hw.streams import receive, send, simulate, words_of


def geometry(link_bytes: int) -> Geometry:
    return Geometry(
        name="least", head_dim=32, rows=8, lanes=1, slots=1, pages_per_slot=1, page_rows=8, link_bytes=link_bytes
    )


def good_frame(rng: random.Random, link_bytes: int, blocks: int) -> bytes:
    values = {"version": frame.VERSION, "opcode": rng.randrange(256), "sequence": rng.randrange(65536)}
    header = frame.pack_header(frame.REQUEST_HEADER, **values, blocks=blocks, count=rng.getrandbits(32))
    return frame.seal(header + rng.randbytes(16 * blocks), link_bytes)


def verdict(data: bytes, link_bytes: int) -> Status:
    """The contract in software."""
    if len(data) < frame.BLOCK + frame.trailer_bytes(link_bytes):
        return Status.BAD_FRAME
    header = frame.unpack_header(frame.REQUEST_HEADER, data)
    if header["version"] != frame.VERSION:
        return Status.BAD_VERSION
    if len(data) != frame.BLOCK * (1 + header["blocks"]) + frame.trailer_bytes(link_bytes):
        return Status.BAD_FRAME
    body = data[: -frame.trailer_bytes(link_bytes)]
    return Status.OK if frame.seal(body, link_bytes) == data else Status.BAD_CRC


def damaged(rng: random.Random, data: bytes, link_bytes: int) -> bytes:
    kind = rng.choice(["cut", "longer", "bit", "version", "blocks"])
    if kind == "cut":
        return data[: link_bytes * rng.randint(1, len(data) // link_bytes - 1)]
    if kind == "longer":
        return data + rng.randbytes(link_bytes * rng.randint(1, 20))
    if kind == "bit":
        position = rng.randrange(8 * len(data))
        return (int.from_bytes(data, "little") ^ 1 << position).to_bytes(len(data), "little")
    if kind == "version":
        changed = bytes([rng.randrange(256)]) + data[1:]
        return changed[: link_bytes * rng.randint(1, len(data) // link_bytes)]
    return data[:6] + rng.randrange(8).to_bytes(2, "little") + data[8:]


@pytest.mark.parametrize("pause", [0.0, 0.4])
@pytest.mark.parametrize("link_bytes", [2, 4, 8, 16])
def test_every_frame_gives_its_verdict(link_bytes: int, pause: float) -> None:
    rng = random.Random(100 * link_bytes)
    frames = []
    for _ in range(60):
        data = good_frame(rng, link_bytes, rng.choice([0, 0, 1, 2, 5]))
        frames.append(data if rng.random() < 0.4 else damaged(rng, data, link_bytes))
    verdicts = [verdict(data, link_bytes) for data in frames]
    assert set(verdicts) == {Status.OK, Status.BAD_FRAME, Status.BAD_VERSION, Status.BAD_CRC}
    dut = Deframer(geometry(link_bytes))

    async def source(ctx: Any) -> None:
        await send(ctx, dut.i, [w for data in frames for w in words_of(data, link_bytes)], random.Random(1), pause)

    async def sink(ctx: Any) -> None:
        for data, expected in zip(frames, verdicts, strict=True):
            offered, payload = False, b""
            while not ctx.get(dut.verdict.valid):
                offered = offered or bool(ctx.get(dut.header.valid))
                go = rng.random() >= pause
                ctx.set(dut.header.ready, go)
                ctx.set(dut.payload.ready, go)
                _, _, word, took = await ctx.tick().sample(dut.payload.payload, dut.payload.valid & dut.payload.ready)
                if took:
                    payload += word.to_bytes(link_bytes, "little")
            ctx.set(dut.header.ready, 0)
            ctx.set(dut.payload.ready, 0)
            header = ctx.get(dut.header.payload)
            assert ctx.get(dut.verdict.payload) == expected
            if len(data) >= frame.BLOCK:
                fields = frame.unpack_header(frame.REQUEST_HEADER, data)
                assert {name: header[name] for name in fields} == fields
            else:
                assert header.sequence == UNREADABLE
                assert header.opcode == header.slot == 0
            assert offered == (len(data) > frame.BLOCK and data[0] == frame.VERSION)
            if offered:
                end = frame.BLOCK * (1 + fields["blocks"])
                assert payload == data[frame.BLOCK : end]
            await receive(ctx, dut.verdict, rng, pause)

    simulate(dut, source, sink)


def test_takes_a_word_a_cycle() -> None:
    link_bytes = 16
    data = good_frame(random.Random(3), link_bytes, 20)
    dut = Deframer(geometry(link_bytes))

    async def bench(ctx: Any) -> None:
        ctx.set(dut.header.ready, 1)
        ctx.set(dut.payload.ready, 1)
        stalls = 0
        for word in words_of(data, link_bytes):
            ctx.set(dut.i.payload, word)
            ctx.set(dut.i.valid, 1)
            while not ctx.get(dut.i.ready):
                stalls += 1
                await ctx.tick()
            await ctx.tick()
        assert stalls == 1  # the header's
        assert ctx.get(dut.verdict.valid)
        assert ctx.get(dut.verdict.payload) == Status.OK

    simulate(dut, bench)
