from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec.commands import COUNTER_FIELDS
from statecell.spec.geometry import config
from statecell_hw.control.counters import COUNTER_BITS, Counters
from tests.hw.streams import simulate


@pytest.mark.parametrize("name", ["tiny", "tiny2", "narrow"])
def test_counts_captures_and_clears(name: str) -> None:
    g = config(name)
    rng = random.Random(5)
    dut = Counters(g)
    most = 2 * g.tiles

    async def bench(ctx: Any) -> None:
        totals = [0] * len(COUNTER_FIELDS)
        for clear in (0, 1, 0):
            for _ in range(50):
                for i, event in enumerate(dut.events):
                    amount = rng.randint(0, most)
                    ctx.set(event, amount)
                    totals[i] += amount
                await ctx.tick()
            ctx.set(dut.capture, 1)
            ctx.set(dut.clear, clear)
            captured = list(totals)  # an input takes effect two cycles late, all alike
            totals = [0 if clear else t + ctx.get(e) for t, e in zip(totals, dut.events, strict=True)]
            await ctx.tick()
            ctx.set(dut.capture, 0)
            ctx.set(dut.clear, 0)
            for event in dut.events:
                ctx.set(event, 0)
            await ctx.tick().repeat(2)
            data = b""
            for index in range(len(COUNTER_FIELDS) * COUNTER_BITS // 8 // g.link_bytes):
                ctx.set(dut.index, index)
                data += ctx.get(dut.word).to_bytes(g.link_bytes, "little")
            assert [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)] == captured

    simulate(dut, bench)
