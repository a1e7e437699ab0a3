from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from statecell.model.accumulate import accumulate
from statecell.model.rows import Rows
from statecell.model.softmax import Weights, running_maximum, weights
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.multiply import Multiplier
from statecell_hw.attention.accumulate import Accumulate
from tests.hw.rows import random_rows
from tests.hw.streams import simulate

STEP_BITS = formats.SCORE_FRACTION + formats.STEP
Pass = tuple[Weights, Tensor, Rows]  # weights, kept [M, n], value rows


def passes_of(g: Geometry, count: int) -> list[Pass]:
    """Scores that climb step by step, equal heaviest weights on full-range codes, and a single row."""
    generator = torch.Generator().manual_seed(9)
    passes = []
    for number in range(6):
        rows = random_rows(g, [1] * (1 if number == 5 else count), generator, (5, 15))
        score = (torch.randn(g.lanes, len(rows), generator=generator) * (3000, 800, 10)[number % 3]).to(torch.int32)
        if number == 3:
            score += torch.arange(len(rows), dtype=torch.int32) * 700
        if number == 4:
            score[:] = 0
            rows.codes[:] = formats.CODE_MIN
            rows.scales[:] = 0x77
        visible = torch.ones_like(score, dtype=torch.bool)
        visible[0, : len(rows) // 3] = False
        _, kept = running_maximum((score + (1 << STEP_BITS) - 1) >> STEP_BITS, visible)
        passes.append((weights(score, visible, rows), kept, rows))
    return passes


@pytest.mark.parametrize(("name", "multiplier"), [("tiny", "native"), ("tiny2", "gated"), ("bench64", "mixed")])
def test_sums_of_passes_and_their_capture(name: str, multiplier: Multiplier) -> None:
    g = config(name)
    passes = passes_of(g, 12 if g.head_dim == 64 else 30)
    assert any(int(w.level.max()) > 0 for w, _, _ in passes)
    dut = Accumulate(g, multiplier=multiplier)
    rng = random.Random(2)

    async def row(ctx: Any, weight: Weights, kept: Tensor, rows: Rows, i: int) -> None:
        sign = [-1 if s < 0 else 1 for s in rows.signed_mantissa[i].tolist()]
        for port, code in zip(dut.codes, rows.effective[i].tolist(), strict=True):
            ctx.set(port, code)
        fresh = step = 0
        for lane in range(g.lanes):
            before = kept[lane, :i].nonzero()
            level = int(weight.level[lane, i])
            fresh |= int(len(before) == 0) << lane
            if len(before) and level > int(weight.level[lane, before[-1]]):
                step |= 1 << lane
            ctx.set(dut.terms[lane], int(weight.sums[lane, i]))
            for group in range(g.groups):
                ctx.set(dut.weights[lane][group], int(weight.values[group][lane, i]) * sign[group])
        ctx.set(dut.enable, sum(int(k) << lane for lane, k in enumerate(kept[:, i])))
        ctx.set(dut.fresh, fresh)
        ctx.set(dut.step, step)
        await ctx.tick()
        ctx.set(dut.enable, 0)
        ctx.set(dut.fresh, rng.randrange(1 << g.lanes))

    async def bench(ctx: Any) -> None:
        for number, (weight, kept, rows) in enumerate(passes):
            for i in range(len(rows)):
                await row(ctx, weight, kept, rows, i)
                while rng.random() < 0.2:
                    await ctx.tick()
            # the next pass begins at once; the capture takes exactly what this one left
            for _ in range(dut.latency - 1 - dut.drain_latency):
                await ctx.tick()
            ctx.set(dut.capture, 1)
            ctx.set(dut.shift, 1)
            await ctx.tick()
            ctx.set(dut.capture, 0)
            words = []
            ctx.set(dut.shift, 1)
            for _ in range(dut.drain_latency):
                await ctx.tick()
            for _ in range(g.lanes * g.vector_words):
                words += [ctx.get(x) for x in dut.drain]
                await ctx.tick()
            ctx.set(dut.shift, 0)
            sums, totals = accumulate(weight, rows, g)
            seen = kept.any(-1)
            for lane in range(g.lanes):
                if not seen[lane]:
                    continue
                got = words[lane * g.head_dim:(lane + 1) * g.head_dim]
                assert got == sums[lane].tolist(), f"pass {number}, lane {lane}"
                assert ctx.get(dut.drain_sums[lane]) == totals[lane], f"pass {number}, lane {lane}"

    simulate(dut, bench, max_cycles=1000)
