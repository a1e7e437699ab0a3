from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from statecell.model.quantise import Queries
from statecell.model.rows import Rows
from statecell.model.score import scores
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.rowstream import GAP
from statecell_hw.attention.score import Score
from tests.hw.rows import random_queries, random_rows
from tests.hw.streams import simulate


def passes_of(g: Geometry, rng: random.Random) -> list[tuple[Queries, Rows, int]]:
    """One-row passes, long ones, every shift that matters, saturated and zero dot products."""
    generator = torch.Generator().manual_seed(8)
    passes = []
    for number in range(24):
        planes = [1] if number in (3, 4, 5, 9) else [rng.choice((1, 1, 2)) for _ in range(rng.randint(1, 12))]
        rows = random_rows(g, planes, generator, (0, 15))
        query = random_queries(g, g.lanes, generator)
        query.exponent[:] = torch.randint(0, 15, (g.lanes,), generator=generator)
        if number == 7:
            query.codes[:] = 0
        if number in (1, 2):
            query.codes[:] = -(1 << (g.query_bits - 1))
            rows.codes[:] = formats.CODE_MIN
            rows.zeros[:] = 8
        passes.append((query, rows, (0, 0, 63, 12, 14, 10)[number] if number < 6 else rng.randint(0, 24)))
    return passes


@pytest.mark.parametrize(("name", "lead"), [("tiny", 3), ("tiny2", 2), ("wide128", 3)])
def test_scores_of_passes_close_behind_each_other(name: str, lead: int) -> None:
    g = config(name)
    rng = random.Random(6)
    dut = Score(g, lead=lead)
    passes = passes_of(g, rng)
    if g.head_dim == 128:
        passes = passes[:8]
    # by cycle: the row whose scale is on the input, and its pass
    timeline: list[tuple[int, int] | None] = [None] * dut.swap_lead
    swaps: dict[int, int] = {}
    for number, (_, rows, _) in enumerate(passes):
        swaps[len(timeline) - dut.swap_lead] = number
        timeline += [(number, row) for row in range(len(rows))] + [None] * (GAP + rng.choice((0, 0, 3)))
    answers = [scores(query, rows, torch.tensor(shift), g) for query, rows, shift in passes]
    limit = (1 << (formats.SCORE_BITS - 1)) - 1
    assert any(int(a.max()) == limit for a in answers) and any(int(a.min()) == -limit - 1 for a in answers)

    def dots(query: Queries, row: Tensor) -> list[list[int]]:
        total: list[list[int]] = (query.codes * row).unflatten(-1, (g.groups, g.group)).sum(-1).tolist()
        return total

    def at(cycle: int) -> tuple[int, int] | None:
        return timeline[cycle] if 0 <= cycle < len(timeline) else None

    async def bench(ctx: Any) -> None:
        for cycle in range(len(timeline) + lead + dut.latency):
            if cycle - 1 in swaps:
                query, _, shift = passes[swaps[cycle - 1]]
                for lane in range(g.lanes):
                    ctx.set(dut.query_sign[lane], int(query.sign[lane] < 0))
                    ctx.set(dut.query_mantissa[lane], int(query.mantissa[lane]) - 8)
                    ctx.set(dut.query_exponent[lane], int(query.exponent[lane]))
                ctx.set(dut.shift, shift)
            ctx.set(dut.swap, cycle in swaps)
            here = at(cycle)
            ctx.set(dut.valid, here is not None)
            if here is not None:
                rows, row = passes[here[0]][1], here[1]
                ctx.set(dut.low, int(rows.low[row]))
                for group in range(g.groups):
                    mantissa = int(rows.signed_mantissa[row, group])
                    ctx.set(dut.mantissa[group], abs(mantissa) - 8)
                    ctx.set(dut.sign[group], int(mantissa < 0))
                    ctx.set(dut.exponent[group], int(rows.exponent[row, group]))
            if (past := at(cycle - lead)) is not None:
                query, rows, _ = passes[past[0]]
                for ports, values in zip(dut.dots, dots(query, rows.effective[past[1]]), strict=True):
                    for port, value in zip(ports, values, strict=True):
                        ctx.set(port, value)
            if (past := at(cycle - lead - dut.latency)) is not None:
                got = [ctx.get(s) for s in dut.scores]
                assert got == answers[past[0]][:, past[1]].tolist(), f"pass {past[0]}, row {past[1]}"
            await ctx.tick()

    simulate(dut, bench, max_cycles=2000)
