from __future__ import annotations

import random
from typing import Any

import pytest

from statecell_hw.recurrent.delay import DelayLine
from tests.hw.streams import simulate


@pytest.mark.parametrize("latency", [2, 3, 7])
def test_words_come_out_the_latency_later(latency: int) -> None:
    dut = DelayLine(16, latency)
    rng = random.Random(1)
    sent: list[int] = []

    async def bench(ctx: Any) -> None:
        for cycle in range(60):
            sent.append(rng.randrange(1 << 16))
            ctx.set(dut.i, sent[-1])
            if cycle >= latency:
                assert ctx.get(dut.o) == sent[cycle - latency]
            await ctx.tick()

    simulate(dut, bench)
