from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec.geometry import config
from statecell_hw.control.passes import PassQueue
from tests.hw.streams import simulate


@pytest.mark.parametrize("name", ["tiny", "tiny2"])
def test_starts_in_order_after_the_queries_and_drops_bad_ones(name: str) -> None:
    g = config(name)
    rng = random.Random(11)
    dut = PassQueue(g)
    attends: list[dict[str, Any]] = []
    for index in range(60):
        sent = rng.randint(1, g.lanes)
        attends.append({
            "tile": rng.randrange(g.tiles), "good": int(rng.random() < 0.7), "sent": sent,
            "pass_": {"first": index % g.slot_rows, "lanes": sent},
        })  # fmt: skip
    arrived = 0
    started: list[tuple[int, int]] = []
    ordered: list[tuple[int, int]] = []
    outcomes = 0

    async def source(ctx: Any) -> None:
        for attend in attends:
            while rng.random() < 0.5:
                await ctx.tick()
            ctx.set(dut.i.payload, attend)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)

    async def queries(ctx: Any) -> None:
        """Queries arrive for the oldest ATTEND only, as the shadow registers enforce."""
        nonlocal arrived
        mine = random.Random(12)
        needed = 0
        for index, attend in enumerate(attends):
            while outcomes < index:
                await ctx.tick()
            needed += attend["sent"]
            while arrived < needed:
                fire = mine.random() < 0.4
                ctx.set(dut.arrived, fire)
                await ctx.tick()
                arrived += fire
                ctx.set(dut.arrived, 0)

    async def tiles(ctx: Any) -> None:
        nonlocal outcomes
        mine = random.Random(13)
        while outcomes < len(attends):
            ctx.set(dut.start.ready, mine.random() < 0.3)
            ctx.set(dut.order.ready, mine.random() < 0.5)
            _, _, start, drop, tile, first, order, result = await ctx.tick().sample(
                dut.start.valid & dut.start.ready, dut.drop, dut.tile, dut.start.payload.first,
                dut.order.valid & dut.order.ready, dut.order.payload,
            )  # fmt: skip
            if order:
                ordered.append((result.tile, result.lanes))
            if start or drop:
                attend = attends[outcomes]
                assert arrived >= sum(a["sent"] for a in attends[: outcomes + 1])
                assert (start, tile) == (attend["good"], attend["tile"])
                if start:
                    assert first == outcomes % g.slot_rows
                    started.append((attend["tile"], attend["sent"]))
                outcomes += 1
        ctx.set(dut.order.ready, 1)
        while not ctx.get(dut.idle):
            _, _, order, result = await ctx.tick().sample(dut.order.valid, dut.order.payload)
            if order:
                ordered.append((result.tile, result.lanes))

    simulate(dut, source, queries, tiles)
    assert started == ordered
    assert len(started) == sum(a["good"] for a in attends)
