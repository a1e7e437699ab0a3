from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from statecell.spec.geometry import config
from statecell_hw.array.rowstream import RowStream
from statecell_hw.control.cursor import Cursor
from tests.hw.streams import simulate


@pytest.mark.parametrize("name", ["tiny", "tiny2", "narrow"])
def test_finds_the_physical_rows(name: str) -> None:
    g = config(name)
    rng = random.Random(2)
    m = Module()
    m.submodules.rows = rows = RowStream(g)
    m.submodules.dut = dut = Cursor(g)
    wiring.connect(m, dut.table, rows.table_read)
    table = [rng.randrange(g.pages) for _ in range(g.tile_slots * g.pages_per_slot)]

    def physical(slot: int, row: int) -> int:
        return table[slot * g.pages_per_slot + row // g.page_rows] * g.page_rows + row % g.page_rows

    async def found(ctx: Any, slot: int, row: int) -> None:
        await ctx.tick()
        ctx.set(dut.start, 0)
        ctx.set(dut.step, 0)
        for _ in range(dut.latency - 1):
            assert not ctx.get(dut.valid)
            await ctx.tick()
        assert ctx.get(dut.valid)
        assert ctx.get(dut.row) == physical(slot, row)
        if row + 1 < g.slot_rows:
            assert ctx.get(dut.following) == physical(slot, row + 1)

    async def bench(ctx: Any) -> None:
        for index, page in enumerate(table):
            ctx.set(rows.table_write.index, index)
            ctx.set(rows.table_write.page, page)
            ctx.set(rows.table_write.en, 1)
            await ctx.tick()
        ctx.set(rows.table_write.en, 0)
        for _ in range(6):
            slot, row = rng.randrange(g.tile_slots), rng.randrange(g.slot_rows)
            ctx.set(dut.slot, slot)
            ctx.set(dut.position, row)
            ctx.set(dut.start, 1)
            await found(ctx, slot, row)
            while True:
                by_two = rng.random() < 0.5
                row += 2 if by_two else 1
                if row >= g.slot_rows:
                    break
                await ctx.tick().repeat(rng.randint(1, 3))
                ctx.set(dut.by_two, by_two)
                ctx.set(dut.step, 1)
                await found(ctx, slot, row)

    simulate(m, bench)
