from __future__ import annotations

import random
from typing import Any

from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_hw.recurrent.backlog import Backlog
from tests.hw.streams import simulate

HEADS = 6


def test_products_wait_for_their_shares() -> None:
    """Heads one after the other, closed as soon as they may be or later; sums saturate."""
    g = config("tiny")
    lanes, rng = g.head_dim, random.Random(5)
    top = (1 << (formats.RECUR_BITS - 1)) - 1
    dut = Backlog(g)

    def number(limit: int = top) -> int:
        return rng.choice((limit, -limit, rng.randint(-limit, limit)))

    rows = [[(number(), number(), number(formats.VECTOR_MAX)) for _ in range(lanes)] for _ in range(HEADS)]
    shares = [[(number(), number()) for _ in range(lanes)] for _ in range(HEADS)]
    betas = [rng.randrange(1 << formats.BETA_BITS) for _ in range(HEADS)]
    # a head closes a row or more after its last row, and head_dim cycles after the one before
    closings: list[int] = []
    for head in range(HEADS):
        earliest = max((head + 1) * lanes, closings[-1] + lanes if closings else 0)
        closings.append(earliest + rng.choice((0, 0, 3)))
    sums: list[int] = []

    async def bench(ctx: Any) -> None:
        asked = 0
        for cycle in range(closings[-1] + lanes + dut.latency + 2):
            head, row = divmod(cycle, lanes)
            ctx.set(dut.valid, head < HEADS)
            ctx.set(dut.begins, head < HEADS and row == 0)
            if head < HEADS:
                o, r, v = rows[head][row]
                ctx.set(dut.products, {"o": o, "r": r, "v": v})
                ctx.set(dut.head.beta, betas[head])
            ctx.set(dut.closing, cycle in closings)
            if asked:
                for port, share in zip(dut.shares, shares[(asked - 1) // lanes][(asked - 1) % lanes], strict=True):
                    ctx.set(port, share)
            starts = [at + dut.latency for at in closings]
            assert ctx.get(dut.swap) == (cycle + 1 in starts)
            due = next((n for n, at in enumerate(starts) if at <= cycle < at + lanes), None)
            assert ctx.get(dut.sums_valid) == (due is not None)
            if due is not None:
                channel = cycle - starts[due]
                found = ctx.get(dut.sums)
                (o, r, v), (more_o, more_r) = rows[due][channel], shares[due][channel]
                expected = (max(-top - 1, min(top, o + more_o)), max(-top - 1, min(top, r + more_r)), v)
                assert (found.o, found.r, found.v) == expected, (due, channel)
                assert ctx.get(dut.last) == (channel == lanes - 1) and ctx.get(dut.sums_head.beta) == betas[due]
                sums.append(due)
            asked += ctx.get(dut.drain)
            await ctx.tick()

    simulate(dut, bench)
    assert len(sums) == HEADS * lanes
