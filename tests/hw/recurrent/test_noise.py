from __future__ import annotations

from typing import Any

import torch
from amaranth.hdl import Const
from amaranth.sim._pyeval import eval_value  # type: ignore[import-untyped]  # the evaluator has no public name

from statecell.model.recurrent import noise
from statecell_hw.recurrent.noise import Noise, lane_noise
from tests.hw.streams import simulate

HEADS, ROWS = 6, 20


def test_the_register_follows_the_model() -> None:
    seeds = torch.randint(1, 1 << 32, (HEADS,), generator=torch.Generator().manual_seed(1))
    words, after = noise.advance(seeds, ROWS)
    dut = Noise()

    async def bench(ctx: Any) -> None:
        for head in range(HEADS):
            for row in range(ROWS):
                ctx.set(dut.valid, 1)
                ctx.set(dut.first, row == 0)
                ctx.set(dut.seed, int(seeds[head]))
                await ctx.tick()
                assert ctx.get(dut.word) == int(words[head, row])
                ctx.set(dut.valid, 0)
                await ctx.tick().repeat(1 + row % 3)
            assert ctx.get(dut.next) == int(after[head])

    simulate(dut, bench)


def test_every_lane_has_its_byte() -> None:
    words = torch.tensor([1, 0x80200003, 0xDEADBEEF])
    expected = noise.lanes(words, 128)
    for word, lanes in zip(words.tolist(), expected.tolist(), strict=True):
        got = [eval_value(None, lane_noise(Const(word, 32), lane)) for lane in range(128)]
        assert got == lanes
