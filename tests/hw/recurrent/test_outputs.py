from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec.geometry import config
from statecell_hw.recurrent.outputs import Outputs
from tests.hw.recurrent.payload import signed_outputs
from tests.hw.streams import receive, simulate


@pytest.mark.parametrize("name", ["ulx3s_85f", "recur32"])  # one output a word, and two
def test_outputs_of_heads_become_words(name: str) -> None:
    g = config(name)
    rng = random.Random(1)
    dut = Outputs(g)
    heads = [[rng.randint(-(1 << 23), (1 << 23) - 1) for _ in range(rng.choice((16, 24, 2 * g.head_dim)))]
             for _ in range(8)]
    blocked = 0

    async def rows(ctx: Any) -> None:
        nonlocal blocked
        for head in heads:
            ctx.set(dut.channels, len(head))
            while not ctx.get(dut.allowed):
                blocked += 1
                await ctx.tick()
            ctx.set(dut.begins, 1)
            for channel, value in enumerate(head):
                ctx.set(dut.valid, 1)
                ctx.set(dut.value, value)
                ctx.set(dut.ends, channel == len(head) - 1)
                await ctx.tick()
                ctx.set(dut.begins, 0)
                ctx.set(dut.valid, 0)
                if rng.random() < 0.1:
                    await ctx.tick()

    async def sink(ctx: Any) -> None:
        for number, head in enumerate(heads):
            words: list[int] = []
            last = 0
            while not last:
                payload = await receive(ctx, dut.o, rng, 0.0 if number < 2 else 0.7)
                words, last = [*words, payload.data], payload.last
            assert signed_outputs(words, g.link_bytes) == head

    async def first_word(ctx: Any) -> None:
        """The latency of the first word."""
        cycles = 0
        outputs = 0
        while outputs < dut.per_word:
            outputs += ctx.get(dut.valid)
            await ctx.tick()
            cycles += 1
        for _ in range(dut.latency - 1):
            assert not ctx.get(dut.o.valid)
            await ctx.tick()
        assert ctx.get(dut.o.valid)

    simulate(dut, rows, first_word, sink)
    assert blocked > 0, "places must have run out"
