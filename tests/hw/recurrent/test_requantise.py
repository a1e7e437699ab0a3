from __future__ import annotations

from typing import Any

import pytest
import torch

from statecell.bench.random_states import every_mode
from statecell.model.recurrent.mode import Rule
from statecell.model.recurrent.writeback import requantise
from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_hw.recurrent.pipeline import MIN_ROWS
from statecell_hw.recurrent.requantise import Requantise
from tests.hw.recurrent.drive import heads_bench
from tests.hw.recurrent.ports import mode_fields, scale_list
from tests.hw.recurrent.states import random_state, random_update
from tests.hw.recurrent.test_choose import set_working
from tests.hw.streams import simulate


@pytest.mark.parametrize(("name", "times"), [("tiny", 1), ("bench64", 3)])
def test_codes_of_every_mode(name: str, times: int) -> None:
    g = config(name)
    generator = torch.Generator().manual_seed(6)
    modes = every_mode(True) * times
    state = random_state(modes, Rule(), g, generator, channels=MIN_ROWS, lane_decay=False)
    update = random_update(state, generator)
    # any scale may be supplied; most are near the working one
    near = (update.exponent << 3) + torch.randint(-16, 17, update.exponent.shape, generator=generator)
    far = torch.randint(0, 120, near.shape, generator=generator)
    scales = torch.where(torch.rand(near.shape, generator=generator) < 0.2, far, near)
    scales = scales.clamp(0, formats.SCALE_MAGNITUDE_MAX) + 128 * torch.randint(0, 2, near.shape, generator=generator)
    words = torch.randint(0, 1 << 32, (len(modes), MIN_ROWS), generator=generator)
    codes = requantise(state, update, scales, words).flatten(-2)
    high = (codes + 8) >> 4
    low = codes - (high << 4)
    dut = Requantise(g)

    def row(ctx: Any, head: int, channel: int) -> None:
        set_working(ctx, dut, update, head, channel)
        for port, scale in zip(dut.scales, scale_list(scales[head, channel]), strict=True):
            ctx.set(port, scale)

    def lanes(ctx: Any, head: int, channel: int) -> None:
        for port, value in zip(dut.lanes, update.lanes[head, channel].flatten().tolist(), strict=True):
            ctx.set(port, value)

    def check(ctx: Any, head: int, channel: int) -> None:
        what = f"row {channel} of head {head}, {modes[head]}"
        assert [ctx.get(x) for x in dut.high] == high[head, channel].tolist(), what
        assert [ctx.get(x) for x in dut.low] == low[head, channel].tolist(), what

    def operands(ctx: Any, head: int) -> None:
        ctx.set(dut.mode, mode_fields(state, head))

    def spread(ctx: Any, head: int, channel: int) -> None:
        ctx.set(dut.noise, int(words[head, channel]))

    bench = heads_bench(dut, len(modes), MIN_ROWS, operands, {0: row, dut.lane_lead: lanes, dut.noise_lead: spread},
                        {dut.latency: check}, pause=0.1)
    simulate(dut, bench)
