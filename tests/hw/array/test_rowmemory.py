from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from amaranth.back import verilog

from statecell.spec.geometry import config
from statecell_hw.array.rowmemory import MODULE, SEGMENT_ROWS, VERILOG, VERILOG_PLATFORM, RowMemory
from tests.hw.streams import simulate


@pytest.mark.parametrize("count", [64, SEGMENT_ROWS + 16])
def test_rows_are_read_at_the_stated_latency_and_hold(count: int) -> None:
    g = replace(config("tiny"), rows=count)
    rng = random.Random(1)
    dut = RowMemory(g)
    rows = [0] * g.rows
    places = [*range(4), *range(g.rows - 4, g.rows)]

    async def bench(ctx: Any) -> None:
        latest, shown = 0, [0] * (dut.latency - 1)
        for _ in range(400):
            write, read = rng.random() < 0.6, rng.random() < 0.6
            at, value = rng.choice(places), rng.getrandbits(g.row_bits)
            place = at if rng.random() < 0.3 else rng.choice(places)
            for port, x in ((dut.write_en, write), (dut.write_row, at), (dut.write_data, value),
                            (dut.read_en, read), (dut.read_row, place)):
                ctx.set(port, x)
            await ctx.tick()
            if read:
                latest = rows[place]  # before the write
            if write:
                rows[at] = value
            shown.append(latest)
            assert ctx.get(dut.read_data) == shown.pop(0)

    simulate(dut, bench, max_cycles=500)


def test_the_largest_memory_is_small_in_verilog() -> None:
    g = replace(config("smollm2"), rows=1 << 20)
    text = verilog.convert(RowMemory(g), platform=VERILOG_PLATFORM)
    assert MODULE in text and len(text) < 20_000
    assert f"module {MODULE}" in VERILOG
