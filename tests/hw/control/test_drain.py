from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec.geometry import config
from statecell_hw.control.drain import Drain
from tests.hw.streams import receive, send, simulate


@pytest.mark.parametrize("name", ["tiny", "tiny2"])
def test_joins_results_in_the_order_of_the_passes(name: str) -> None:
    g = config(name)
    rng = random.Random(14)
    dut = Drain(g)
    order = [(rng.randrange(g.tiles), rng.randint(1, g.lanes)) for _ in range(12)]
    streams: list[list[int]] = [[] for _ in range(g.tiles)]
    expected = []
    for tile, lanes in order:
        words = [rng.randrange(1000) for _ in range(lanes * g.vector_words)]
        streams[tile] += words
        expected += words

    def tile_source(number: int) -> Any:
        async def run(ctx: Any) -> None:
            payloads = [{"data": [word] + [0] * (g.word - 1)} for word in streams[number]]
            await send(ctx, dut.tiles[number], payloads, random.Random(number), 0.2)

        return run

    async def orders(ctx: Any) -> None:
        await send(ctx, dut.order, [{"tile": t, "lanes": n} for t, n in order], random.Random(15), 0.2)

    async def sink(ctx: Any) -> None:
        for word in expected:
            got = await receive(ctx, dut.o, rng, 0.2)
            assert got.data[0] == word

    simulate(dut, *[tile_source(n) for n in range(g.tiles)], orders, sink)
