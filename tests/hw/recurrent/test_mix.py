from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from statecell.model.recurrent import log
from statecell.spec.formats import MIX_BITS
from statecell.spec.geometry import config
from statecell_hw.recurrent.mix import Mix
from tests.hw.array.vectors import corner_vectors, random_vectors
from tests.hw.streams import simulate


@pytest.mark.parametrize("name", ["tiny", "bench64"])
def test_products_of_vectors(name: str) -> None:
    g = config(name)
    dut = Mix(g)
    rng = random.Random(1)
    vectors = [*corner_vectors(g.head_dim), *random_vectors(g, 30, seed=2)]
    pairs = [(rng.choice(vectors), rng.choice(vectors)) for _ in range(60)]
    pairs += [(vectors[1], vectors[which]) for which in (1, 2, 2, 1, 1, 1)]
    # every third pair goes on with the one before
    continues = [number % 3 == 2 for number in range(len(pairs))]
    expected = [int(log.mix(torch.cat([before[0], q]), torch.cat([before[1], b])) if goes_on else log.mix(q, b))
                for before, (q, b), goes_on in zip([pairs[0], *pairs], pairs, continues, strict=False)]
    top = (1 << (MIX_BITS - 1)) - 1
    assert {top, -top - 1} <= set(expected) and any(abs(x) < top for x in expected if x)

    async def give(ctx: Any, strobe: Any, vector: torch.Tensor) -> None:
        for word in vector.unflatten(0, (-1, g.word)).tolist():
            ctx.set(strobe, 1)
            for port, value in zip(dut.i, word, strict=True):
                ctx.set(port, value)
            await ctx.tick()
            ctx.set(strobe, 0)
            if rng.random() < 0.2:
                await ctx.tick()

    async def bench(ctx: Any) -> None:
        for (q, b), mix, goes_on in zip(pairs, expected, continues, strict=True):
            ctx.set(dut.continues, goes_on)
            await give(ctx, dut.query, q)
            await give(ctx, dut.valid, b)
            await ctx.tick().repeat(dut.latency - 1)
            assert ctx.get(dut.mix) == mix

    simulate(dut, bench)
