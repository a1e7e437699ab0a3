from __future__ import annotations

import random
from typing import Any

from statecell_hw.recurrent.lost import Lost
from tests.hw.streams import simulate

SLOTS = 3


def test_octaves_of_slots() -> None:
    """Tokens of many slots; commits and openings in between."""
    rng = random.Random(4)
    dut = Lost(slots=SLOTS)
    totals = [0] * SLOTS

    async def bench(ctx: Any) -> None:
        for slot in range(SLOTS):
            ctx.set(dut.open_en, 1)
            ctx.set(dut.open_slot, slot)
            await ctx.tick()
        ctx.set(dut.open_en, 0)
        for _ in range(400):
            slot, octaves, opened = rng.randrange(SLOTS), rng.randrange(24), rng.randrange(SLOTS)
            kind = rng.choice(("token", "token", "token", "nothing", "commit", "open"))
            ctx.set(dut.slot, slot)
            ctx.set(dut.octaves, octaves)
            await ctx.tick()
            assert ctx.get(dut.before) == totals[slot] and ctx.get(dut.lost) == totals[slot] + octaves
            for port, name in ((dut.adds, "token"), (dut.clears, "commit"), (dut.open_en, "open")):
                ctx.set(port, kind == name)
            ctx.set(dut.open_slot, opened)
            await ctx.tick()
            for port in (dut.adds, dut.clears, dut.open_en):
                ctx.set(port, 0)
            totals[slot] = {"token": totals[slot] + octaves, "commit": 0}.get(kind, totals[slot])
            if kind == "open":
                totals[opened] = 0

    simulate(dut, bench)
    assert max(totals) > 0
