from __future__ import annotations

import random
from typing import Any

from statecell.spec import formats
from statecell_hw.recurrent.age import Age
from tests.hw.streams import simulate

SLOTS = 3


def test_ages_of_slots_and_of_their_tokens() -> None:
    """Tokens of many slots, logged or not; commits and openings in between."""
    rng = random.Random(4)
    dut = Age(slots=SLOTS)
    totals, ages = [0] * SLOTS, {}

    async def bench(ctx: Any) -> None:
        for slot in range(SLOTS):
            ctx.set(dut.open_en, 1)
            ctx.set(dut.open_slot, slot)
            await ctx.tick()
        ctx.set(dut.open_en, 0)
        for _ in range(400):
            slot, octaves, entry = rng.randrange(SLOTS), rng.randrange(24), rng.randrange(formats.LOG_MAX)
            kind = rng.choice(("token", "token", "token", "logged", "logged", "commit", "open"))
            ctx.set(dut.slot, slot)
            ctx.set(dut.octaves, octaves)
            ctx.set(dut.entry, entry)
            await ctx.tick()
            assert ctx.get(dut.before) == totals[slot] and ctx.get(dut.lost) == totals[slot] + octaves
            ctx.set(dut.adds, kind in ("token", "logged"))
            ctx.set(dut.logs, kind == "logged")
            ctx.set(dut.clears, kind == "commit")
            ctx.set(dut.open_en, kind == "open")
            opened = rng.randrange(SLOTS)
            ctx.set(dut.open_slot, opened)
            await ctx.tick()
            for port in (dut.adds, dut.logs, dut.clears, dut.open_en):
                ctx.set(port, 0)
            if kind in ("token", "logged"):
                totals[slot] += octaves
            if kind == "logged":
                ages[slot, entry] = totals[slot]
            if kind == "commit":
                totals[slot] = 0
            if kind == "open":
                totals[opened] = 0
            read = rng.choice([(0, 0), *ages])
            ctx.set(dut.read_slot, read[0])
            ctx.set(dut.read_entry, read[1])
            await ctx.tick()
            assert ctx.get(dut.age) == ages.get(read, 0)

    simulate(dut, bench)
    assert max(totals) > 0 and len(ages) > 100
