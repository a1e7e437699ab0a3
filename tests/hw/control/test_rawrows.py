from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec.geometry import Geometry, config
from statecell_hw.control.rawrows import RowReader, RowWriter
from tests.hw.streams import receive, send, simulate, words_of

READ_LATENCY = 3
LOOK_UP = 4


def padded(row: int, g: Geometry) -> bytes:
    return row.to_bytes(g.row_bytes, "little")


@pytest.mark.parametrize("name", ["tiny", "tiny2", "narrow"])
def test_reads_key_and_value_rows_in_turn(name: str) -> None:
    g = config(name)
    rng = random.Random(16)
    dut = RowReader(g, read_latency=READ_LATENCY)
    rows = [(rng.getrandbits(g.row_bits), rng.getrandbits(g.row_bits)) for _ in range(5)]
    ended = False

    async def tile(ctx: Any) -> None:
        position, wait, asked = 0, 0, [0] * READ_LATENCY
        while not ended:
            ctx.set(dut.cursor_valid, wait == 0)
            key, value = rows[asked[0]] if asked[0] is not None else (0, 0)
            ctx.set(dut.key, key)
            ctx.set(dut.value, value)
            _, _, en, step = await ctx.tick().sample(dut.read_en, dut.cursor_step)
            assert not en or wait == 0
            asked = [*asked[1:], position if en else None]  # type: ignore[list-item]
            position, wait = (min(position + 1, len(rows) - 1), LOOK_UP) if step else (position, max(0, wait - 1))

    async def bench(ctx: Any) -> None:
        nonlocal ended
        ctx.set(dut.count, len(rows))
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        for key, value in rows:
            for word in words_of(padded(key, g) + padded(value, g), g.link_bytes):
                assert ctx.get(dut.busy)
                assert await receive(ctx, dut.o, rng, 0.2) == word["data"]
        assert not ctx.get(dut.busy)
        ended = True

    simulate(dut, bench, tile)


@pytest.mark.parametrize("name", ["tiny", "tiny2", "narrow"])
def test_writes_whole_rows_only(name: str) -> None:
    g = config(name)
    rng = random.Random(17)
    dut = RowWriter(g)
    rows = [(rng.getrandbits(g.row_bits), rng.getrandbits(g.row_bits)) for _ in range(4)]
    ended = False
    written: list[tuple[int, int, int, int]] = []

    async def tile(ctx: Any) -> None:
        row, wait = 0, LOOK_UP
        while not ended:
            ctx.set(dut.cursor_valid, wait == 0)
            ctx.set(dut.cursor_row, row)
            w = dut.write
            _, _, step, start, key, value, where, data = await ctx.tick().sample(
                dut.cursor_step, dut.start, w.key_en, w.value_en, w.row, w.data
            )
            if key or value:
                assert wait == 0
                written.append((key, value, where, data))
            row, wait = (0, LOOK_UP) if start else (row + 1, LOOK_UP) if step else (row, max(0, wait - 1))

    async def bench(ctx: Any) -> None:
        nonlocal ended
        # Bits beyond a row are not stored.
        junk = ((1 << 8 * g.row_bytes) - 1) ^ ((1 << g.row_bits) - 1)
        payload = b"".join(padded(key | junk, g) + padded(value, g) for key, value in rows)
        words = [w["data"] for w in words_of(payload, g.link_bytes)]
        for missing in (1, 0):  # the frame cut short first: what it left must not shift the next
            written.clear()
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            await send(ctx, dut.i, words[: len(words) - missing], rng, 0.2)
            await ctx.tick()
            while ctx.get(dut.busy):
                await ctx.tick()
            await ctx.tick()  # the other bench has seen the last write
            expected = [w for i, (k, v) in enumerate(rows) for w in ((1, 0, i, k), (0, 1, i, v))]
            assert written == expected[: len(expected) - missing]
        ended = True

    simulate(dut, bench, tile)
