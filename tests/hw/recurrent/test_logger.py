from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from statecell.model.recurrent import log
from statecell.model.recurrent.bits import round_shift
from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_hw.recurrent.logger import Logger
from tests.hw.recurrent.ports import scale_list
from tests.hw.streams import simulate

TOKENS = 8


@pytest.mark.parametrize("name", ["recur32", "hybrid"])
def test_rows_of_tokens(name: str) -> None:
    """Values and keys as two-plane rows at their places, token after token without a pause; some are not logged."""
    g = config(name)
    rng = random.Random(2)
    generator = torch.Generator().manual_seed(2)
    size = 2.0 ** torch.randint(4, 25, (TOKENS, 1), generator=generator)
    d = (torch.randn(TOKENS, g.head_dim, generator=generator) * size).round().long()
    d = d.clamp(-(1 << 23), (1 << 23) - 1)
    whole = round_shift(d, formats.RECUR_FRACTION).clamp(-formats.VECTOR_MAX, formats.VECTOR_MAX)
    values, value_scales = log.eight_bits(whole, g)
    keys = torch.randint(formats.WIDE_MIN, formats.WIDE_MAX + 1, (TOKENS, g.head_dim), generator=generator)
    key_scales = torch.randint(0, 120, (TOKENS, g.groups), generator=generator)
    places = [{"key": rng.randrange(g.rows), "value": rng.randrange(g.rows), "logged": number % 4 != 2}
              for number in range(TOKENS)]
    dut = Logger(g)
    ends: list[int] = []
    landings: list[int] = []
    cycle = 0

    def nibbles(codes: torch.Tensor, scales: torch.Tensor) -> dict[str, Any]:
        high = codes.flatten() + 8 >> formats.CODE_BITS
        low = codes.flatten() - (high << formats.CODE_BITS)
        return {"high": high.tolist(), "low": low.tolist(), "scales": scale_list(scales)}

    async def feed(ctx: Any) -> None:
        nonlocal cycle
        for number in range(TOKENS):
            for lane in range(g.head_dim):
                ctx.set(dut.begins, lane == 0)
                ctx.set(dut.place, places[number])
                ctx.set(dut.valid, 1)
                ctx.set(dut.d, int(d[number, lane]))
                await ctx.tick()
                cycle += 1
            ends.append(cycle - 1)
        ctx.set(dut.valid, 0)
        while len(landings) < TOKENS:
            await ctx.tick()
            cycle += 1

    async def look(ctx: Any) -> None:
        shape = dut.write_row.shape()
        writes: list[tuple[int, int]] = []
        while True:
            number = min(len(landings), TOKENS - 1)
            ctx.set(dut.key, {"codes": [keys[number].tolist()] * 2, "scales": [scale_list(key_scales[number])] * 2,
                              "falls": [0] * g.head_dim})
            if ctx.get(dut.write_en):
                writes.append((ctx.get(dut.row), ctx.get(dut.write_row.as_value())))
            assert ctx.get(dut.taken) == ctx.get(dut.landed)
            if ctx.get(dut.landed):
                place = places[number]
                expected = [(place["value"], nibbles(values[number], value_scales[number])),
                            (place["key"], nibbles(keys[number], key_scales[number]))]
                assert ctx.get(dut.skips) == (not place["logged"])
                assert writes == ([(row, shape.const(x).as_bits()) for row, x in expected] if place["logged"] else [])
                writes.clear()
                landings.append(cycle)
            await ctx.tick()

    simulate(dut, feed, background=[look])
    assert [b - a for a, b in zip(ends, landings, strict=True)] == [dut.latency] * TOKENS
