from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from statecell.model.recurrent.mode import Mode, Rule, Storage
from statecell.spec.geometry import config
from statecell_hw.recurrent.energy import Energy
from tests.hw.recurrent.ports import scale_list
from tests.hw.recurrent.states import random_state
from tests.hw.streams import simulate


@pytest.mark.parametrize("name", ["tiny", "wide128"])
def test_energies_of_heads(name: str) -> None:
    g = config(name)
    rng = random.Random(1)
    modes = [Mode(storage=list(Storage)[i % 3]) for i in range(6)]
    state = random_state(modes, Rule(), g, torch.Generator().manual_seed(1), channels=9, lane_decay=False)
    state.codes[0], state.scales[0] = -128, 119
    dut = Energy(g)
    found: list[tuple[int, int]] = []
    lasts: list[int] = []

    async def bench(ctx: Any) -> None:
        cycle = 0

        async def tick() -> None:
            nonlocal cycle
            if ctx.get(dut.o_valid):
                found.append((cycle, ctx.get(dut.energy)))
            await ctx.tick()
            cycle += 1

        for head in range(state.heads):
            for channel in range(state.channels):
                ctx.set(dut.valid, 1)
                ctx.set(dut.last, channel == state.channels - 1)
                for port, code in zip(dut.high, state.high[head, channel].flatten().tolist(), strict=True):
                    ctx.set(port, code)
                for port, scale in zip(dut.scales, scale_list(state.scales[head, channel]), strict=True):
                    ctx.set(port, scale)
                if channel == state.channels - 1:
                    lasts.append(cycle)
                await tick()
                ctx.set(dut.valid, 0)
                if rng.random() < 0.1:
                    await tick()
        for _ in range(dut.latency + 1):
            await tick()

    simulate(dut, bench)
    assert [cycle for cycle, _ in found] == [last + dut.latency for last in lasts]
    assert [energy for _, energy in found] == state.energy().tolist()
