from __future__ import annotations

from typing import Any

import pytest
import torch

from statecell.bench.random_states import every_mode, random_scales
from statecell.model.recurrent.mode import Rule
from statecell.model.recurrent.writeback import Update, choose
from statecell.spec.geometry import config
from statecell_hw.recurrent.choose import Choose
from statecell_hw.recurrent.pipeline import MIN_ROWS
from tests.hw.recurrent.drive import heads_bench
from tests.hw.recurrent.ports import mode_fields, scale_list
from tests.hw.recurrent.states import random_state, random_update
from tests.hw.streams import simulate


@pytest.mark.parametrize(("name", "times"), [("tiny", 1), ("bench64", 3)])
def test_scales_of_every_mode(name: str, times: int) -> None:
    g = config(name)
    generator = torch.Generator().manual_seed(2)
    modes = every_mode(True) * times
    state = random_state(modes, Rule(), g, generator, channels=MIN_ROWS, lane_decay=False)
    update = random_update(state, generator)
    given = random_scales(state, generator)
    scales, renewed = choose(state, update, given, False)
    dut = Choose(g)

    def row(ctx: Any, head: int, channel: int) -> None:
        set_update(ctx, dut, update, head, channel)
        for i in range(g.groups):
            ctx.set(dut.raised[i], int(update.raised[head, channel, i] > 0))
            ctx.set(dut.supplied[i], scale_list(given[head, channel])[i])

    def check(ctx: Any, head: int, channel: int) -> None:
        what = f"row {channel} of head {head}, {modes[head]}"
        assert [ctx.get(s.as_value()) for s in dut.scales] == scales[head, channel].tolist(), what
        assert [ctx.get(x) for x in dut.renewed] == renewed[head, channel].int().tolist(), what

    def operands(ctx: Any, head: int) -> None:
        ctx.set(dut.mode, mode_fields(state, head))

    bench = heads_bench(dut, len(modes), MIN_ROWS, operands, {0: row}, {dut.latency: check}, pause=0.1)
    simulate(dut, bench)
    held = torch.tensor([m.scales == "held" for m in modes])
    share = float(renewed[held].double().mean())
    assert 0.2 < share < 0.9, "held scales must be kept and renewed"


def set_update(ctx: Any, dut: Any, update: Update, head: int, channel: int) -> None:
    """Lanes and working scale of a row."""
    for port, value in zip(dut.lanes, update.lanes[head, channel].flatten().tolist(), strict=True):
        ctx.set(port, value)
    set_working(ctx, dut, update, head, channel)

def set_working(ctx: Any, dut: Any, update: Update, head: int, channel: int) -> None:
    """Working scale of a row."""
    for ports, values in ((dut.mantissa, update.mantissa), (dut.exponent, update.exponent),
                          (dut.sign, update.turned.int())):
        for port, value in zip(ports, values[head, channel].tolist(), strict=True):
            ctx.set(port, value)
