from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_hw.array.bank import Bank
from tests.hw.rows import random_rows, row_words
from tests.hw.streams import simulate


@pytest.mark.parametrize("name", ["tiny", "tiny2"])
def test_rows_come_back_with_their_fields_at_the_stated_times(name: str) -> None:
    g = config(name)
    rng = random.Random(3)
    planes = [1, 2, 1, 1, 2, 2] * 5
    rows = random_rows(g, planes, torch.Generator().manual_seed(3), (0, 15))
    words = row_words(rows, g)
    place = rng.sample(range(g.rows), len(words))
    ends = [sum(planes[:i + 1]) for i in range(len(planes))]
    # runs of whole tokens with pauses between them
    reads: list[int | None] = []
    for _ in range(12):
        first, last = sorted(rng.sample(range(len(ends)), 2))
        reads += [*range(ends[first], ends[last]), *[None] * rng.randint(1, 3)]
    dut = Bank(g)
    checked = 0

    async def bench(ctx: Any) -> None:
        nonlocal checked
        for row, word in zip(place, words, strict=True):
            ctx.set(dut.write_row, row)
            ctx.set(dut.write_data, word)
            ctx.set(dut.write_en, 1)
            await ctx.tick()
        ctx.set(dut.write_data, 0)
        ctx.set(dut.write_en, 0)
        for cycle in range(len(reads) + dut.scale_latency):
            read = reads[cycle] if cycle < len(reads) else None
            ctx.set(dut.read_en, read is not None)
            ctx.set(dut.read_row, place[read] if read is not None else rng.randrange(g.rows))

            def shown(latency: int, now: int = cycle) -> int | None:
                return reads[now - latency] if 0 <= now - latency < len(reads) else None

            if (at := shown(dut.raw_latency)) is not None:
                assert ctx.get(dut.raw) == words[at]
            if (at := shown(dut.latency)) is not None:
                assert [ctx.get(c) for c in dut.codes] == rows.effective[at].tolist()
            if (at := shown(dut.scale_latency)) is not None:
                assert ctx.get(dut.low) == int(rows.low[at])
                mantissa = [(8 + ctx.get(x)) * (-1 if ctx.get(s) else 1)
                            for x, s in zip(dut.mantissa, dut.sign, strict=True)]
                assert mantissa == rows.signed_mantissa[at].tolist()
                assert [ctx.get(e) for e in dut.exponent] == rows.exponent[at].tolist()
                checked += int(rows.low[at])
            await ctx.tick()

    simulate(dut, bench, max_cycles=2000)
    assert checked > 5, "low planes must have been read"


def test_a_read_in_the_cycle_of_a_write_returns_the_old_row() -> None:
    dut = Bank(config("tiny"))
    mark = 5 << formats.CODE_BITS

    async def bench(ctx: Any) -> None:
        ctx.set(dut.write_en, 1)
        ctx.set(dut.write_row, 7)
        ctx.set(dut.write_data, mark)
        await ctx.tick()
        ctx.set(dut.write_data, 3 * mark)
        ctx.set(dut.read_en, 1)
        ctx.set(dut.read_row, 7)
        await ctx.tick()
        ctx.set(dut.write_en, 0)
        seen = [ctx.get(dut.raw)]
        for _ in range(dut.raw_latency):
            await ctx.tick()
            ctx.set(dut.read_en, 0)
            seen.append(ctx.get(dut.raw))
        assert seen[-2:] == [mark, 3 * mark]

    simulate(dut, bench, max_cycles=20)
