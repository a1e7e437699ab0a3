from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from amaranth.back import verilog

from statecell.spec.geometry import config
from statecell_hw.array.rowmemory import MODULE, VERILOG, VERILOG_PLATFORM, RowMemory
from tests.hw.streams import simulate


def test_rows_are_read_one_cycle_later_and_hold() -> None:
    g = config("tiny")
    rng = random.Random(1)
    dut = RowMemory(g)
    rows = [0] * g.rows

    async def bench(ctx: Any) -> None:
        expected = 0
        for _ in range(400):
            write, read = rng.random() < 0.6, rng.random() < 0.6
            at, value = rng.randrange(8), rng.getrandbits(g.row_bits)
            place = at if rng.random() < 0.3 else rng.randrange(8)
            for port, x in ((dut.write_en, write), (dut.write_row, at), (dut.write_data, value),
                            (dut.read_en, read), (dut.read_row, place)):
                ctx.set(port, x)
            await ctx.tick()
            if read:
                expected = rows[place]  # before the write
            if write:
                rows[at] = value
            assert ctx.get(dut.read_data) == expected

    simulate(dut, bench, max_cycles=500)


def test_the_largest_memory_is_small_in_verilog() -> None:
    g = replace(config("smollm2"), rows=1 << 20)
    text = verilog.convert(RowMemory(g), platform=VERILOG_PLATFORM)
    assert MODULE in text and len(text) < 20_000
    assert f"module {MODULE}" in VERILOG
