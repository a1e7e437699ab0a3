from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from statecell.spec import frame
from statecell.spec.geometry import Geometry, config
from statecell_hw.control.bounds import Bounds
from tests.hw.streams import send, simulate, words_of

MANY = Geometry(name="many", head_dim=32, rows=64, lanes=6, slots=1, pages_per_slot=8, page_rows=8, link_bytes=4)


@pytest.mark.parametrize("g", [config("tiny"), config("tiny2"), config("narrow"), MANY], ids=lambda g: g.name)
def test_joins_and_checks_the_ranges(g: Geometry) -> None:
    rng = random.Random(4)
    dut = Bounds(g)

    async def bench(ctx: Any) -> None:
        outcomes = set()
        for _ in range(40):
            rows = rng.randint(0, g.slot_rows)
            ranges = [sorted(rng.sample(range(rows + 2), 2)) for _ in range(rng.randint(1, g.lanes))]
            if rng.random() < 0.3:
                ranges[rng.randrange(len(ranges))] = rng.choice(([1, 1], [1, 0x8001], [0x4001, 0x4002], [0xFF00, 2]))
            for signal, value in ((dut.count, len(ranges)), (dut.rows, rows), (dut.start, 1)):
                ctx.set(signal, value)
            await ctx.tick()
            ctx.set(dut.start, 0)
            payload = frame.pad(b"".join(struct.pack("<HH", *r) for r in ranges))
            await send(ctx, dut.i, [w["data"] for w in words_of(payload, g.link_bytes)], rng, 0.2)
            assert ctx.get(dut.full)
            assert not ctx.get(dut.i.ready)
            await ctx.tick().repeat(len(ranges) + 1)
            bad = any(start >= end or end > rows for start, end in ranges)
            outcomes.add(bad)
            assert ctx.get(dut.bad) == bad
            if not bad:
                assert ctx.get(dut.first) == min(r[0] for r in ranges)
                assert ctx.get(dut.end) == max(r[1] for r in ranges)
            for lane, (start, end) in enumerate(ranges):
                assert (ctx.get(dut.starts[lane]), ctx.get(dut.ends[lane])) == (start, end)
        assert outcomes == {False, True}

    simulate(dut, bench)
