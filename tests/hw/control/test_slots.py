from __future__ import annotations

import random
from typing import Any

from statecell.spec.geometry import config
from statecell_hw.control.slots import SlotTable, slot_layout
from tests.hw.streams import simulate

G = config("tiny")


def test_holds_entries_and_closes_all_slots() -> None:
    rng = random.Random(1)
    dut = SlotTable(G)

    async def closing(ctx: Any) -> None:
        cycles = 0
        while not ctx.get(dut.ready):
            await ctx.tick()
            cycles += 1
        assert cycles == G.slots

    async def write(ctx: Any, slot: int, entry: dict[str, int]) -> None:
        ctx.set(dut.write_slot, slot)
        ctx.set(dut.write_entry, entry)
        ctx.set(dut.write_en, 1)
        await ctx.tick()
        ctx.set(dut.write_en, 0)

    async def read(ctx: Any, slot: int) -> dict[str, int]:
        ctx.set(dut.read_slot, slot)
        await ctx.tick().repeat(dut.latency)
        entry = ctx.get(dut.entry)
        return {name: entry[name] for name in slot_layout(G).members}

    async def bench(ctx: Any) -> None:
        await closing(ctx)
        entries = [
            {"open": 1, "rows": rng.randint(0, G.slot_rows), "pages": rng.randint(0, G.pages_per_slot)}
            for _ in range(G.slots)
        ]
        for slot, entry in enumerate(entries):
            await write(ctx, slot, entry)
        for slot in rng.sample(range(G.slots), G.slots):
            assert await read(ctx, slot) == entries[slot]
        ctx.set(dut.clear, 1)
        await ctx.tick()
        ctx.set(dut.clear, 0)
        await closing(ctx)
        for slot in range(G.slots):
            assert (await read(ctx, slot))["open"] == 0

    simulate(dut, bench)
