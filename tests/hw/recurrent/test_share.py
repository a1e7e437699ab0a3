from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from statecell.model.recurrent import log
from statecell.model.recurrent.mode import Mode, Rule
from statecell.model.recurrent.state import Log, State, new_state
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.multiply import Multiplier
from statecell_hw.recurrent.share import Share
from tests.hw.recurrent.ports import scale_list
from tests.hw.streams import simulate

HEADS, ENTRIES = 6, 8


def random_values(g: Geometry, generator: torch.Generator) -> tuple[State, torch.Tensor]:
    """Logged values of any size, and what they are multiplied by, int64 [H, 2, C]."""
    state = new_state([Mode(interval=ENTRIES)] * HEADS, Rule(), g, channels=g.head_dim)
    assert isinstance(state.log, Log)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high + 1, shape, generator=generator)

    values = integers(formats.WIDE_MIN, formats.WIDE_MAX, HEADS, ENTRIES, g.groups, g.group)
    state.log.values = values.to(torch.int32)
    state.log.value_scales = integers(0, 119, HEADS, ENTRIES, g.groups) + 128 * integers(0, 1, HEADS, ENTRIES, g.groups)
    mixed = integers(-(1 << 23), (1 << 23) - 1, HEADS, 2, ENTRIES) >> integers(0, 20, HEADS, 1, ENTRIES)
    mixed[0], state.log.values[0], state.log.value_scales[0] = (1 << 23) - 1, formats.WIDE_MAX, 119
    return state, mixed


@pytest.mark.parametrize(("name", "multiplier"), [("tiny", "native"), ("bench64", "gated")])
def test_shares_of_channels(name: str, multiplier: Multiplier) -> None:
    g = config(name)
    rng = random.Random(1)
    state, mixed = random_values(g, torch.Generator().manual_seed(6))
    assert state.log is not None
    expected, logged = log.share(state, mixed), state.log
    limit = (1 << (formats.RECUR_BITS - 1)) - 1
    assert bool((expected == limit).any()) and bool((expected.abs() < limit).any())
    dut = Share(g, multiplier=multiplier)

    async def bench(ctx: Any) -> None:
        for head in range(HEADS):
            for entry in range(ENTRIES):
                ctx.set(dut.mixed_valid, 1)
                ctx.set(dut.mixed_index, entry)
                for vector in range(2):
                    ctx.set(dut.mixed[vector], int(mixed[head, vector, entry]))
                await ctx.tick()
                ctx.set(dut.mixed_valid, 0)
            for entry in range(ENTRIES):
                while rng.random() < 0.2:
                    await ctx.tick()
                ctx.set(dut.valid, 1)
                ctx.set(dut.index, entry)
                for port, code in zip(dut.codes, logged.values[head, entry].flatten().tolist(), strict=True):
                    ctx.set(port, code)
                for port, scale in zip(dut.scales, scale_list(logged.value_scales[head, entry]), strict=True):
                    ctx.set(port, scale)
                await ctx.tick()
                ctx.set(dut.valid, 0)
            await ctx.tick().repeat(dut.latency - 1)
            ctx.set(dut.drain, 1)
            for channel in range(g.head_dim):
                await ctx.tick()
                assert [ctx.get(x) for x in dut.shares] == expected[head, :, channel].tolist(), (head, channel)
            ctx.set(dut.drain, 0)

    simulate(dut, bench)
