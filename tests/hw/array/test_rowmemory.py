from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from amaranth.back import verilog

from statecell.spec.geometry import config
from statecell_hw.array.rowmemory import MODULE, SEGMENT_ROWS, VERILOG, VERILOG_PLATFORM, RowMemory
from tests.hw.streams import no_collision, simulate


@pytest.mark.parametrize("count", [64, SEGMENT_ROWS + 16])
def test_rows_are_read_at_the_stated_latency(count: int) -> None:
    g = replace(config("tiny"), rows=count)
    rng = random.Random(1)
    dut = RowMemory(g)
    rows = [0] * g.rows
    places = [*range(4), *range(g.rows - 4, g.rows)]

    async def bench(ctx: Any) -> None:
        shown: list[int | None] = [None] * (dut.latency - 1)
        for _ in range(400):
            write, read = rng.random() < 0.6, rng.random() < 0.6
            at, value = rng.choice(places), rng.getrandbits(g.row_bits)
            place = at if rng.random() < 0.3 else rng.choice(places)
            for port, x in ((dut.write_en, write << at // SEGMENT_ROWS), (dut.write_row, at), (dut.write_data, value),
                            (dut.read_en, read), (dut.read_row, place)):
                ctx.set(port, x)
            await ctx.tick()
            shown.append(rows[place] if read else None)  # before the write
            if write:
                rows[at] = value
            due = shown.pop(0)
            assert due is None or ctx.get(dut.read_data) == due

    simulate(dut, bench, max_cycles=500)


def test_a_read_of_the_row_that_is_written_is_noticed() -> None:
    dut = RowMemory(config("tiny"))

    async def bench(ctx: Any) -> None:
        for read_row in (5, 4):
            for port, x in ((dut.write_en, 1), (dut.read_en, 1), (dut.write_row, 4), (dut.read_row, read_row)):
                ctx.set(port, x)
            await ctx.tick()
        await ctx.tick()

    with pytest.raises(AssertionError, match="in the cycle that writes it"):
        simulate(dut, bench, background=[no_collision(dut)])


def test_the_largest_memory_is_small_in_verilog() -> None:
    g = replace(config("smollm2"), rows=1 << 20)
    text = verilog.convert(RowMemory(g), platform=VERILOG_PLATFORM)
    assert MODULE in text and len(text) < 20_000
    assert f"module {MODULE}" in VERILOG
