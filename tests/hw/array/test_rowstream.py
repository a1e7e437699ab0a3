from __future__ import annotations

import random
from typing import Any

from statecell.spec.geometry import config
from statecell_hw.array.rowstream import GAP, RowStream
from tests.hw.streams import simulate


def test_rows_of_passes_in_order_without_bubbles_and_with_the_gap() -> None:
    g = config("tiny2")
    rng = random.Random(4)
    dut = RowStream(g)
    entries = g.tile_slots * g.pages_per_slot
    table = [rng.randrange(g.pages) for _ in range(entries)]
    passes: list[dict[str, Any]] = []
    for number in range(25):
        first, end = sorted(rng.sample(range(g.slot_rows + 1), 2))
        if number % 5 == 0:
            first, end = (0, g.slot_rows) if number % 10 else (first, first + 1)
        limits = [sorted(rng.sample(range(g.slot_rows + 1), 2)) for _ in range(g.lanes)]
        passes.append({
            "slot": rng.randrange(g.tile_slots), "first": first, "end": end, "start": [a for a, _ in limits],
            "end_": [b for _, b in limits], "active": rng.randrange(1 << g.lanes), "lanes": rng.randint(1, g.lanes),
            "shift": rng.randrange(64),
        })
    seen: list[tuple[int, tuple[int, ...]]] = []
    accepted: list[int] = []
    expected = []
    for p in passes:
        for row in range(p["first"], p["end"]):
            page = table[p["slot"] * g.pages_per_slot + row // g.page_rows]
            visible = sum(
                1 << lane for lane in range(g.lanes)
                if p["active"] >> lane & 1 and p["start"][lane] <= row < p["end_"][lane]
            )
            expected.append((int(row == p["first"]), int(row == p["end"] - 1), p["lanes"], visible,
                             page * g.page_rows + row % g.page_rows))

    async def bench(ctx: Any) -> None:
        for index, page in enumerate(table):
            ctx.set(dut.table_write.index, index)
            ctx.set(dut.table_write.page, page)
            ctx.set(dut.table_write.en, 1)
            await ctx.tick()
        ctx.set(dut.table_write.en, 0)
        for number, p in enumerate(passes):
            ctx.set(dut.pass_.payload, p)
            ctx.set(dut.pass_.valid, 1)
            blocked = rng.randint(0, 2 * GAP) if number % 3 == 0 else 0
            ctx.set(dut.allowed, not blocked)
            for _ in range(blocked):
                await ctx.tick()
                assert not ctx.get(dut.pass_.ready)
            ctx.set(dut.allowed, 1)
            await ctx.tick().until(dut.pass_.ready)
            assert ctx.get(dut.shift) == p["shift"]
        ctx.set(dut.pass_.valid, 0)
        await ctx.tick().repeat(g.slot_rows + GAP)

    async def watch(ctx: Any) -> None:
        cycle = 0
        tag = dut.tag
        signals: list[Any] = [dut.valid, tag.first, tag.last, tag.lanes, tag.visible, tag.row,
                                 dut.pass_.valid, dut.pass_.ready]
        while len(seen) < len(expected):
            values = (await ctx.tick().sample(*signals))[-len(signals):]
            if values[-1] and values[-2]:
                accepted.append(cycle)
            if values[0]:
                seen.append((cycle, values[1:-2]))
            cycle += 1

    async def lookups(ctx: Any) -> None:
        await ctx.tick().repeat(entries)
        for _ in range(100):
            index = rng.randrange(entries)
            ctx.set(dut.table_read.index, index)
            await ctx.tick()
            assert ctx.get(dut.table_read.page) == table[index]

    simulate(dut, bench, watch, lookups, max_cycles=3000)
    assert [row for _, row in seen] == expected
    at, gaps = 0, []
    for accept, p in zip(accepted, passes, strict=True):
        count = p["end"] - p["first"]
        times = [cycle for cycle, _ in seen[at:at + count]]
        start = accept + dut.accept_latency + dut.latency
        assert times == list(range(start, start + count))
        if at:
            gaps.append(start - seen[at - 1][0] - 1)
        at += count
    assert min(gaps) == GAP, "passes that wait follow after exactly the gap"
