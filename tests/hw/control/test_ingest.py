from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec.geometry import config
from statecell_hw.control.ingest import Ingest
from statecell_hw.layouts import Kind
from tests.hw.streams import send, simulate

LOOK_UP = 4


@pytest.mark.parametrize("pause", [0.0, 0.3])
@pytest.mark.parametrize("name", ["tiny", "tiny2", "narrow"])
def test_every_vector_is_whole_and_has_its_job(name: str, pause: float) -> None:
    g = config(name)
    rng = random.Random(6)
    dut = Ingest(g)
    words = g.vector_words
    got: list[tuple[int, int, tuple[int, ...]]] = []
    ended = False

    async def cursor(ctx: Any) -> None:
        """A cursor whose rows count up from 5."""
        row, wait = 5, LOOK_UP
        while not ended:
            ctx.set(dut.cursor_valid, wait == 0)
            ctx.set(dut.cursor_row, row)
            ctx.set(dut.cursor_following, row + 1)
            _, _, step, start = await ctx.tick().sample(dut.cursor_step, dut.start)
            assert not step or wait == 0
            row, wait = (5, LOOK_UP) if start else (row + 1, LOOK_UP) if step else (row, max(wait - 1, 0))

    async def sink(ctx: Any) -> None:
        source = random.Random(7)
        while not ended:
            ctx.set(dut.o.ready, source.random() >= pause)
            _, _, took, word = await ctx.tick().sample(dut.o.valid & dut.o.ready, dut.o.payload)
            if took:
                job = word.job
                fields = (job.kind.value, job.tile, job.lane, job.row, job.following, job.wide, job.zero_point)
                got.append((word.data, word.first, tuple(int(f) for f in fields) if word.first else ()))

    async def bench(ctx: Any) -> None:
        nonlocal ended
        for attend in (0, 1, 0, 1):
            for missing in (0, 1, words):
                count = g.lanes if attend else 4
                tile, wide, zero = rng.randrange(g.tiles), 0 if attend else rng.randrange(2), 0
                for signal, value in ((dut.attend, attend), (dut.tile, tile), (dut.wide, wide), (dut.start, 1)):
                    ctx.set(signal, value)
                await ctx.tick()
                ctx.set(dut.start, 0)
                got.clear()
                payload = [rng.getrandbits(8 * g.link_bytes) for _ in range(count * words)]
                sent = payload[: len(payload) - missing]
                await send(ctx, dut.i, sent, rng, pause)
                ctx.set(dut.flush, 1)
                await ctx.tick()
                while ctx.get(dut.open):
                    await ctx.tick()
                await ctx.tick()  # the other bench has seen the last word
                ctx.set(dut.flush, 0)
                vectors = -(-len(sent) // words)
                assert [w[0] for w in got] == sent + [0] * (vectors * words - len(sent))
                assert [w[1] for w in got] == [int(i % words == 0) for i in range(vectors * words)]
                for index in range(vectors):
                    if attend:
                        expected = (Kind.QUERY.value, tile, index)
                        assert got[index * words][2][:3] == expected
                        assert got[index * words][2][5:] == (0, 0)
                    else:
                        kind, row = (Kind.VALUE if index % 2 else Kind.KEY).value, 5 + index // 2
                        job = got[index * words][2]
                        assert (job[0], *job[1:2], *job[3:]) == (kind, tile, row, row + 1, wide, zero)
                if attend:
                    assert ctx.get(dut.vectors) == vectors
        ended = True

    simulate(dut, bench, cursor, sink)
