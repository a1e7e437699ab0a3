from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec.geometry import config
from statecell_hw.array.multiply import Multiplier
from statecell_hw.recurrent.operands import HALVES
from statecell_hw.recurrent.pipeline import MIN_ROWS
from statecell_hw.recurrent.update import Update
from tests.hw.recurrent.drive import heads_bench
from tests.hw.recurrent.ports import scale_fields
from tests.hw.streams import simulate

HEADS = 8


@pytest.mark.parametrize(("name", "multiplier"), [("tiny", "native"), ("bench64", "gated")])
def test_lanes_in_the_working_scale(name: str, multiplier: Multiplier) -> None:
    g = config(name)
    rng = random.Random(9)
    dut = Update(g, multiplier=multiplier)

    def nibbles() -> list[int]:
        return [rng.choice((-8, 7, rng.randint(-8, 7))) for _ in range(g.head_dim)]

    feedback = [rng.choice((0, 13, 16)) for _ in range(HEADS)]
    codes = [[[rng.choice((-128, 119, rng.randint(-128, 119))) for _ in range(g.head_dim)] for _ in range(HALVES)]
             for _ in range(HEADS)]
    falls = [[rng.choice((0, 1, 14)) if head % 2 else 0 for _ in range(g.head_dim)] for head in range(HEADS)]
    rows = {(head, row): (nibbles(), nibbles(), [rng.choice((0, 0, rng.randrange(15))) for _ in range(g.groups)],
                          [rng.choice((-4096, 4095, 0, rng.randint(-4096, 4095))) for _ in range(g.groups)])
            for head in range(HEADS) for row in range(MIN_ROWS)}
    halves = {place: rng.randrange(HALVES) for place in rows}
    # every other head folds a log: rows of the state without a gain of their own, then keys
    folds = {(head, row): head % 2 == 0 and row % 5 != 0 for head, row in rows}
    for head in range(0, HEADS, 2):
        for row in range(MIN_ROWS):
            rows[head, row] = (*rows[head, row][:3], [x // 4 for x in rows[head, row][3]])

    def operands(ctx: Any, head: int) -> None:
        ctx.set(dut.feedback, feedback[head])

    def keys(ctx: Any, head: int) -> None:
        ctx.set(dut.key, {"codes": codes[head], "falls": falls[head],
                          "scales": [[scale_fields(0)] * g.groups] * HALVES})

    def stored(ctx: Any, head: int, row: int) -> None:
        high, low, fall, _ = rows[head, row]
        ctx.set(dut.entry, folds[head, row])
        ctx.set(dut.bare, head % 2 == 0)
        ctx.set(dut.half, halves[head, row])
        for ports, values in ((dut.high, high), (dut.low, low), (dut.fall, fall)):
            for port, value in zip(ports, values, strict=True):
                ctx.set(port, value)

    def gains(ctx: Any, head: int, row: int) -> None:
        for port, value in zip(dut.gain, rows[head, row][3], strict=True):
            ctx.set(port, value)
        if row == 0:
            assert not ctx.get(dut.key_taken)
            if head + 1 < HEADS:
                keys(ctx, head + 1)

    def taken(ctx: Any, head: int, row: int) -> None:
        assert ctx.get(dut.key_taken) == (row == 0)

    def lane_value(head: int, row: int, lane: int) -> int:
        home = row
        while folds[head, home]:
            home -= 1
        high, low, fall, gain = rows[head, home]
        start = 256 * high[lane] + feedback[head] * low[lane] >> min(14, fall[lane // g.group] + falls[head][lane])
        total = 0 if head % 2 == 0 else gain[lane // g.group] * codes[head][halves[head, home]][lane]
        for entry in range(home + 1, row + 1):
            high, low, _, gain = rows[head, entry]
            total += gain[lane // g.group] * ((16 * high[lane] + low[lane] + 128) % 256 - 128)
        return (start + (total >> 8) + (1 << 13)) % (1 << 14) - (1 << 13)

    def check(ctx: Any, head: int, row: int) -> None:
        expected = [lane_value(head, row, lane) for lane in range(g.head_dim)]
        assert [ctx.get(lane) for lane in dut.lanes] == expected, f"row {row} of head {head}"

    async def first(ctx: Any) -> None:
        keys(ctx, 0)

    bench = heads_bench(dut, HEADS, MIN_ROWS, operands, {0: stored, dut.gain_lead: gains},
               {dut.latency: check, dut.gain_lead - 1: taken}, prepare=first)
    simulate(dut, bench)
