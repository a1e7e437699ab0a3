from __future__ import annotations

import random
from typing import Any

from statecell.spec import formats
from statecell_hw.recurrent.ages import LATENCY, Ages
from statecell_hw.recurrent.operands import LOST_BITS
from tests.hw.streams import simulate

SLOTS = 5


def test_ages_of_logged_tokens() -> None:
    """Ages of tokens as they are logged, and through the port for snapshots."""
    rng = random.Random(1)
    dut = Ages(slots=SLOTS)
    known: dict[tuple[int, int], int] = {}

    async def bench(ctx: Any) -> None:
        for _ in range(300):
            slot, entry, age = rng.randrange(SLOTS), rng.randrange(formats.LOG_MAX), rng.getrandbits(LOST_BITS)
            outside = rng.random() < 0.4
            ctx.set(dut.logs, not outside)
            ctx.set(dut.access.writes, outside)
            names = (dut.access.slot, dut.access.entry, dut.access.written) if outside else (
                dut.slot, dut.entries, dut.lost)
            for port, value in zip(names, (slot, entry, age), strict=True):
                ctx.set(port, value)
            await ctx.tick()
            ctx.set(dut.logs, 0)
            ctx.set(dut.access.writes, 0)
            known[slot, entry] = age
            (slot, entry), age = rng.choice([*known.items()])
            outside = rng.random() < 0.4
            ctx.set(dut.access.reads, outside)
            ctx.set(dut.access.slot if outside else dut.slot, slot)
            ctx.set(dut.access.entry if outside else dut.index, entry)
            await ctx.tick().repeat(LATENCY)
            assert ctx.get(dut.access.age if outside else dut.age) == age

    simulate(dut, bench)
