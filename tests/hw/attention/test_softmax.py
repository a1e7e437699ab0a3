from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from statecell.model.rows import Rows
from statecell.model.softmax import running_maximum, weights
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.rowstream import GAP
from statecell_hw.attention.softmax import Softmax
from tests.hw.rows import random_rows
from tests.hw.streams import simulate

STEP = 1 << (formats.SCORE_FRACTION + formats.STEP)
LIMIT = (1 << (formats.SCORE_BITS - 1)) - 1
Pass = tuple[Tensor, Tensor, Rows]  # score [M, n], visible [M, n], value rows [n]


def shapes(count: int, generator: torch.Generator) -> list[Tensor]:
    """Scores [n]: equal, random, ramps at the edge of what one step a row follows, jumps around the look-ahead."""
    time = torch.arange(count)
    out = [torch.zeros(count), torch.full((count,), LIMIT), torch.full((count,), -LIMIT - 1), time * STEP - 20 * STEP,
           time * (STEP + 1) - 20 * STEP, time * 2 * STEP - 30 * STEP, time * (STEP * 3 // 2) - 40 * STEP, -time * STEP]
    for jump in range(formats.LOOKAHEAD - 1, formats.LOOKAHEAD + 5):
        for more in (-1, 0, 1):
            out.append(torch.where(time < count // 2, 0, jump * STEP + more))
    for spread in (30, 300, 3000, 20000, 100000):
        out += [torch.randn(count, generator=generator) * spread for _ in range(4)]
    spikes = torch.randn(count, generator=generator) * 500
    spikes[::7] += torch.arange(len(spikes[::7])) * 4 * STEP
    return [x.round().to(torch.int32).clamp(-LIMIT - 1, LIMIT) for x in [*out, spikes]]


def passes_of(g: Geometry, rng: random.Random, generator: torch.Generator) -> list[Pass]:
    passes: list[Pass] = []
    for count in (1, 2, 9, 40):
        scores = shapes(count, generator)
        rng.shuffle(scores)
        if count < 40:
            scores = scores[:6 * g.lanes]
        while scores:
            lanes = [scores.pop() if scores else torch.zeros(count, dtype=torch.int32) for _ in range(g.lanes)]
            visible = torch.zeros(g.lanes, count, dtype=torch.bool)
            for lane in range(g.lanes):
                start, end = sorted(rng.sample(range(count + 1), 2)) if rng.random() < 0.4 else (0, count)
                visible[lane, start:end] = rng.random() < 0.95 or len(passes) % 2 == 0
            planes = [1] * count
            if count == 40:
                planes = [1, 2] * 13 + [1]
            passes.append((torch.stack(lanes), visible, random_rows(g, planes, generator, (0, 15))))
    return passes


@pytest.mark.parametrize("name", ["tiny", "tiny2"])
def test_weights_steps_and_drops(name: str) -> None:
    g = config(name)
    rng = random.Random(7)
    passes = passes_of(g, rng, torch.Generator().manual_seed(7))
    dut = Softmax(g)
    timeline: list[tuple[int, int] | None] = []
    for number, (_, visible, _) in enumerate(passes):
        timeline += [(number, row) for row in range(visible.shape[-1])] + [None] * GAP
    # per pass and row: enable, fresh, step, terms, weights of all lanes
    got: list[list[tuple[int, int, int, list[int], list[list[int]]]]] = [[] for _ in passes]

    def at(cycle: int) -> tuple[int, int] | None:
        return timeline[cycle] if 0 <= cycle < len(timeline) else None

    async def bench(ctx: Any) -> None:
        for cycle in range(len(timeline) + dut.latency):
            here = at(cycle)
            ctx.set(dut.valid, here is not None)
            if here is not None:
                score, visible, _ = passes[here[0]]
                ctx.set(dut.first, here[1] == 0)
                ctx.set(dut.visible, sum(int(v) << i for i, v in enumerate(visible[:, here[1]])))
                for port, value in zip(dut.scores, score[:, here[1]].tolist(), strict=True):
                    ctx.set(port, value)
            if (past := at(cycle - dut.scale_lead)) is not None:
                rows = passes[past[0]][2]
                ctx.set(dut.low, int(rows.low[past[1]]))
                for group in range(g.groups):
                    mantissa = int(rows.signed_mantissa[past[1], group])
                    ctx.set(dut.mantissa[group], abs(mantissa) - 8)
                    ctx.set(dut.sign[group], int(mantissa < 0))
                    ctx.set(dut.exponent[group], int(rows.exponent[past[1], group]))
            if (past := at(cycle - dut.latency)) is not None:
                got[past[0]].append((
                    ctx.get(dut.enable), ctx.get(dut.fresh), ctx.get(dut.step), [ctx.get(t) for t in dut.terms],
                    [[ctx.get(w) for w in lane] for lane in dut.weights],
                ))
            else:
                assert ctx.get(dut.enable) == 0
            await ctx.tick()

    simulate(dut, bench, max_cycles=4000)
    dropped = stepped = 0
    for number, (score, visible, rows) in enumerate(passes):
        expected = weights(score, visible, rows)
        sign = torch.where(rows.signed_mantissa < 0, -1, 1)
        _, kept = running_maximum((score + STEP - 1) >> (formats.SCORE_FRACTION + formats.STEP), visible)
        for lane in range(g.lanes):
            enabled = [row[0] >> lane & 1 for row in got[number]]
            assert enabled == visible[lane].int().tolist(), f"pass {number}, lane {lane}"
            seen = [i for i, e in enumerate(enabled) if e]
            fresh = [i for i in seen if got[number][i][1] >> lane & 1]
            assert fresh[:1] == seen[:1], f"pass {number}, lane {lane}: the first visible row starts afresh"
            level = 0
            for i in seen:
                mark = f"pass {number}, lane {lane}, row {i}"
                assert bool(kept[lane, i]) == (i >= fresh[-1]), mark
                if i < fresh[-1]:
                    continue
                step = got[number][i][2] >> lane & 1
                assert not (step and i == fresh[-1]), mark
                level += step
                assert level == expected.level[lane, i], mark
                assert got[number][i][3][lane] == expected.sums[lane, i], mark
                signed = [int(w[lane, i] * s) for w, s in zip(expected.values, sign[i], strict=True)]
                assert got[number][i][4][lane] == signed, mark
            dropped += len(fresh) > 1
            stepped += level > 0
    assert dropped >= 5 and stepped >= 10, "the scores must jump and climb"
