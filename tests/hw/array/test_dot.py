from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from statecell.model.quantise import Queries
from statecell.spec.geometry import config
from statecell_hw.array.dot import Dot
from statecell_hw.array.multiply import Multiplier
from tests.hw.rows import random_queries
from tests.hw.streams import simulate


async def load(ctx: Any, dut: Dot, lane: int, query: Queries) -> None:
    ctx.set(dut.load.lane, lane)
    assert ctx.get(dut.load_ready)
    ctx.set(dut.load.valid, 1 << lane)
    ctx.set(dut.load.codes, query.codes[lane].tolist())
    ctx.set(dut.load.sign, int(query.sign[lane] < 0))
    ctx.set(dut.load.mantissa, int(query.mantissa[lane]) - 8)
    ctx.set(dut.load.exponent, int(query.exponent[lane]))
    await ctx.tick()
    ctx.set(dut.load.valid, 0)
    assert not ctx.get(dut.load_ready) and ctx.get(dut.full) >> lane & 1


def corner_rows(low: int, high: int, dim: int) -> list[Tensor]:
    alternating = torch.where(torch.arange(dim) % 2 == 0, low, high)
    return [torch.full((dim,), x) for x in (0, low, high, -1)] + [alternating]


@pytest.mark.parametrize(
    ("name", "multiplier"),
    [("tiny", "native"), ("tiny", "gated"), ("tiny", "mixed"), ("tiny2", "gated"), ("tiny2", "mixed"),
     ("bench64", "mixed")],
)
def test_dot_products_of_two_query_sets(name: str, multiplier: Multiplier) -> None:
    g = config(name)
    dut = Dot(g, multiplier=multiplier)
    rng = random.Random(1)
    generator = torch.Generator().manual_seed(1)
    low, high = -(1 << (g.effective_bits - 1)), (1 << (g.effective_bits - 1)) - 1
    if g.zero_point:
        low = -high  # code + 8 - z
    count = 10 if g.head_dim == 64 else 40
    rows = corner_rows(low, high, g.head_dim)
    rows += list(torch.randint(low, high + 1, (count, g.head_dim), generator=generator))
    sets = [random_queries(g, g.lanes, generator) for _ in range(2)]
    limit = 1 << (g.query_bits - 1)
    sets[1].codes[0] = -limit
    sets[1].codes[-1, ::2] = limit - 1

    async def bench(ctx: Any) -> None:
        for lane in range(g.lanes):
            await load(ctx, dut, lane, sets[0])
        for number, query in enumerate(sets):
            ctx.set(dut.swap, 1)
            await ctx.tick()
            ctx.set(dut.swap, 0)
            assert ctx.get(dut.full) == 0
            for lane in range(g.lanes):
                assert ctx.get(dut.query_sign[lane]) == int(query.sign[lane] < 0)
                assert ctx.get(dut.query_mantissa[lane]) == query.mantissa[lane] - 8
                assert ctx.get(dut.query_exponent[lane]) == query.exponent[lane]
            shown: list[Tensor | None] = []
            pending = list(rows)
            while pending or any(x is not None for x in shown[-dut.latency:]):
                row = pending.pop(0) if pending and rng.random() < 0.8 else None
                ctx.set(dut.valid, row is not None)
                values = row if row is not None else torch.randint(low, high + 1, (g.head_dim,), generator=generator)
                for port, value in zip(dut.codes, values.tolist(), strict=True):
                    ctx.set(port, value)
                shown.append(row)
                if len(shown) == g.lanes + 2 and number == 0:  # the next set loads while rows stream
                    ctx.set(dut.valid, 0)
                    shown[-1:] = [None] * g.lanes
                    pending = ([row] if row is not None else []) + pending
                    for lane in range(g.lanes):
                        await load(ctx, dut, lane, sets[1])
                    continue
                past = shown[-1 - dut.latency] if len(shown) > dut.latency else None
                if past is not None:
                    expected = (query.codes * past).unflatten(-1, (g.groups, g.group)).sum(-1)
                    assert [[ctx.get(d) for d in lane] for lane in dut.dots] == expected.tolist()
                await ctx.tick()

    simulate(dut, bench, max_cycles=1000)


@pytest.mark.parametrize("multiplier", ["native", "gated", "mixed"])
def test_rows_meet_one_of_two_sets_side_by_side(multiplier: Multiplier) -> None:
    g = replace(config("tiny"), lanes=4)
    dut = Dot(g, multiplier=multiplier, sets=2)
    generator = torch.Generator().manual_seed(3)
    low, high = -(1 << (g.effective_bits - 1)), (1 << (g.effective_bits - 1)) - 1
    rows = torch.randint(low, high + 1, (40, g.head_dim), generator=generator)
    uppers = torch.randint(0, 2, (40,), generator=generator).tolist()
    query = random_queries(g, g.lanes, generator)

    async def bench(ctx: Any) -> None:
        for lane in range(g.lanes):
            await load(ctx, dut, lane, query)
        ctx.set(dut.swap, 1)
        await ctx.tick()
        ctx.set(dut.swap, 0)
        for cycle in range(len(rows) + dut.latency):
            ctx.set(dut.valid, cycle < len(rows))
            if cycle < len(rows):
                ctx.set(dut.upper, uppers[cycle])
                for port, value in zip(dut.codes, rows[cycle].tolist(), strict=True):
                    ctx.set(port, value)
            past = cycle - dut.latency
            if past >= 0:
                met = query.codes[2 * uppers[past]:2 * uppers[past] + dut.products]
                expected = (met * rows[past]).unflatten(-1, (g.groups, g.group)).sum(-1)
                assert [[ctx.get(d) for d in lane] for lane in dut.dots] == expected.tolist()
            await ctx.tick()

    simulate(dut, bench, max_cycles=1000)


def test_drop_frees_the_shadows_and_keeps_the_active_queries() -> None:
    g = config("tiny")
    dut = Dot(g)
    generator = torch.Generator().manual_seed(2)
    first, second = random_queries(g, g.lanes, generator), random_queries(g, g.lanes, generator)

    async def bench(ctx: Any) -> None:
        for lane in range(g.lanes):
            await load(ctx, dut, lane, first)
        ctx.set(dut.swap, 1)
        await ctx.tick()
        ctx.set(dut.swap, 0)
        for lane in range(g.lanes):
            await load(ctx, dut, lane, second)
        ctx.set(dut.drop, 1)
        await ctx.tick()
        ctx.set(dut.drop, 0)
        assert ctx.get(dut.full) == 0
        assert [ctx.get(e) for e in dut.query_exponent] == first.exponent.tolist()

    simulate(dut, bench, max_cycles=50)
