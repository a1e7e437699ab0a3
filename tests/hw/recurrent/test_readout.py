from __future__ import annotations

from typing import Any

import pytest
import torch

from statecell.model.recurrent.mode import Mode, Rule, Storage
from statecell.model.recurrent.readout import queries, read
from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_hw.array.multiply import Multiplier
from statecell_hw.recurrent.pipeline import MIN_ROWS
from statecell_hw.recurrent.readout import Readout
from tests.hw.recurrent.drive import heads_bench
from tests.hw.recurrent.ports import mode_fields, scale_list, set_load
from tests.hw.recurrent.states import random_state
from tests.hw.streams import simulate

HEADS = 12


@pytest.mark.parametrize(("name", "multiplier", "rotated"), [
    ("tiny", "native", True), ("tiny2", "gated", False), ("bench64", "native", True), ("wide128", "native", True)])
def test_products_of_rows_with_both_vectors(name: str, multiplier: Multiplier, rotated: bool) -> None:
    compare(name, multiplier, rotated, 1)


@pytest.mark.parametrize(("name", "multiplier", "rotated"), [("tiny2", "gated", True), ("bench64", "native", True)])
def test_products_of_channels_of_two_rows(name: str, multiplier: Multiplier, rotated: bool) -> None:
    compare(name, multiplier, rotated, 2)


def compare(name: str, multiplier: Multiplier, rotated: bool, halves: int) -> None:
    g = config(name)
    generator = torch.Generator().manual_seed(5)
    modes = [Mode(storage=list(Storage)[i % 3], rotate=rotated) for i in range(HEADS)]
    state = random_state(modes, Rule(), g, generator, channels=MIN_ROWS, lane_decay=False, halves=halves)
    sizes = 2.0 ** torch.randint(0, 17, (HEADS, 2, 1), generator=generator)
    vectors = (torch.randn(HEADS, 2, state.width, generator=generator) * sizes).clamp(
        -formats.VECTOR_MAX, formats.VECTOR_MAX).round().long()
    vectors[0] = formats.VECTOR_MAX
    vectors[1, 0] = 0
    state.shift[:3] = formats.STATE_SHIFT_MAX
    state.scales[0, :4] = state.scales[0, :4] & 0x87 | 0x70
    lost = torch.randint(0, 80, (HEADS, 2), generator=generator) * torch.randint(0, 2, (HEADS, 1), generator=generator)
    lost[:2] = 0
    query = queries(state, vectors)
    expected = read(state, query, lost)
    top = (1 << (formats.RECUR_BITS - 1)) - 1
    assert bool((expected == top).any()) and bool((expected == -top - 1).any()) and bool((expected[1, 0] == 0).all())
    seen = torch.where(state.modes.blind[:, None, None, None], state.high << formats.CODE_BITS, state.codes)
    dut = Readout(g, multiplier=multiplier)

    def operands(ctx: Any, head: int) -> None:
        ctx.set(dut.mode, mode_fields(state, head))
        ctx.set(dut.halved, int(state.rotation_gain[head] < 0))

    def row(ctx: Any, head: int, channel: int) -> None:
        lane, following = channel - 1, head + 1
        channel, half = divmod(channel, halves)
        of_half = slice(half * g.groups, (half + 1) * g.groups)
        ctx.set(dut.halves, halves - 1)
        ctx.set(dut.half, half)
        for port, code in zip(dut.codes, seen[head, channel, of_half].flatten().tolist(), strict=True):
            ctx.set(port, code)
        for port, scale in zip(dut.scales, scale_list(state.scales[head, channel, of_half]), strict=True):
            ctx.set(port, scale)
        ctx.set(dut.load.valid, 0)
        if lane in range(2 * halves) and following < HEADS:  # the next head's vectors load while rows stream
            set_load(ctx, dut.load, lane, query, following)

    def falls(ctx: Any, head: int, channel: int) -> None:
        for port, fall in zip(dut.falls, lost[head].clamp(max=formats.LOST_MAX).tolist(), strict=True):
            ctx.set(port, fall)

    def check(ctx: Any, head: int, channel: int) -> None:
        channel, half = divmod(channel, halves)
        found = [ctx.get(dut.o), ctx.get(dut.r)]
        assert half + 1 < halves or found == expected[head, :, channel].tolist(), f"row {channel} of head {head}"

    async def first(ctx: Any) -> None:
        for lane in range(2 * halves):
            set_load(ctx, dut.load, lane, query, 0)
            await ctx.tick()
        ctx.set(dut.load.valid, 0)

    bench = heads_bench(dut, HEADS, halves * MIN_ROWS, operands, {0: row, dut.fall_lead: falls}, {dut.latency: check},
                        gap=dut.gap, prepare=first)
    simulate(dut, bench)
