from __future__ import annotations

import random
from typing import Any

import torch

from statecell.model.recurrent import factor
from statecell.spec.formats import VECTOR_MAX
from statecell.spec.geometry import config
from statecell_hw.recurrent.weigh import Weigh
from tests.hw.streams import simulate


def test_products_with_factors() -> None:
    dut = Weigh(config("tiny"))
    rng = random.Random(1)
    count, p = 200, len(dut.i)
    words = torch.tensor([[rng.choice((VECTOR_MAX, -VECTOR_MAX, 0, 1, -1, rng.randint(-VECTOR_MAX, VECTOR_MAX)))
                           for _ in range(p)] for _ in range(count)])
    weights = torch.tensor([[rng.choice((1, 1 << 23, (1 << 24) - 1, 1 << 24, rng.randrange(1 << 23, 1 << 24)))
                             for _ in range(p)] for _ in range(count)])
    expected = factor.times_half(words, weights)

    async def bench(ctx: Any) -> None:
        for cycle in range(count + dut.latency):
            ctx.set(dut.valid, cycle < count)
            if cycle < count:
                for i in range(p):
                    ctx.set(dut.i[i], int(words[cycle, i]))
                    ctx.set(dut.weight[i], int(weights[cycle, i]))
            past = cycle - dut.latency
            assert ctx.get(dut.o_valid) == (past >= 0)
            if past >= 0:
                assert [ctx.get(o) for o in dut.o] == expected[past].tolist()
            await ctx.tick()

    simulate(dut, bench)
