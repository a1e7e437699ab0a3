from __future__ import annotations

import random
from typing import Any

import pytest

from statecell_hw.stage import Stage
from tests.hw.streams import receive, send, simulate


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_every_word_comes_out_once_and_in_order(pause: float) -> None:
    rng = random.Random(1)
    words = [rng.randrange(256) for _ in range(100)]
    dut = Stage(8)

    async def source(ctx: Any) -> None:
        await send(ctx, dut.i, words, random.Random(2), pause)

    async def sink(ctx: Any) -> None:
        assert [await receive(ctx, dut.o, rng, pause) for _ in words] == words

    cycles = simulate(dut, source, sink)
    if not pause:
        assert cycles <= len(words) + 2  # a word a cycle, one cycle late


def test_nothing_passes_within_a_cycle() -> None:
    dut = Stage(8)

    async def bench(ctx: Any) -> None:
        ctx.set(dut.i.valid, 1)
        assert not ctx.get(dut.o.valid)
        await ctx.tick()
        assert ctx.get(dut.o.valid) and ctx.get(dut.i.ready)
        await ctx.tick()  # the second word is held, too
        ctx.set(dut.o.ready, 1)
        assert not ctx.get(dut.i.ready)

    simulate(dut, bench)
