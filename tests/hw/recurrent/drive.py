"""Heads of rows for a block of the row path: operands around ``swap``, rows in order, checks at their latencies."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

Setter = Callable[[Any, int], None]
RowSetter = Callable[[Any, int, int], None]
Bench = Callable[[Any], Coroutine[Any, Any, None]]


def heads_bench(dut: Any, heads: int, rows: int, operands: Setter, row: dict[int, RowSetter],
                checks: dict[int, RowSetter], *, pause: float = 0.0, gap: int = 0,
                prepare: Bench | None = None) -> Bench:
    """A bench for rows of ``heads`` x ``rows``, heads ``gap`` cycles apart and rows with random pauses.

    ``operands(ctx, head)`` sets a head's operands, in the cycle after its ``swap``; ``row[lead](ctx, head, row)`` sets
    what comes ``lead`` cycles after ``valid``, ``checks[latency]`` looks at what has come after ``latency`` cycles.
    ``prepare`` runs before all of it.
    """
    rng = random.Random(1)
    timeline: list[tuple[int, int] | None] = [None]
    for head in range(heads):
        for number in range(rows):
            while number and rng.random() < pause:
                timeline.append(None)
            timeline.append((head, number))
        timeline += [None] * gap

    def at(cycle: int) -> tuple[int, int] | None:
        return timeline[cycle] if 0 <= cycle < len(timeline) else None

    async def bench(ctx: Any) -> None:
        if prepare is not None:
            await prepare(ctx)
        made = 0
        for cycle in range(len(timeline) + max(checks)):
            here, following = at(cycle), at(cycle + 1)
            if here is not None and here[1] == 0:
                operands(ctx, here[0])
            ctx.set(dut.swap, following is not None and following[1] == 0)
            ctx.set(dut.valid, here is not None)
            for lead, setter in row.items():
                past = at(cycle - lead)
                if past is not None:
                    setter(ctx, *past)
            for latency, check in checks.items():
                past = at(cycle - latency)
                if past is not None:
                    check(ctx, *past)
                    made += 1
            await ctx.tick()
        assert made == heads * rows * len(checks)

    return bench
