"""Rows of all modes against the integer model, heads without a bubble between them."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

from statecell.bench.random_states import every_mode, random_scales, random_token
from statecell.model.recurrent import integer
from statecell.model.recurrent.mode import Rule
from statecell.model.recurrent.state import State
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.multiply import Multiplier
from statecell_hw.recurrent.path import RecurrentPath
from statecell_hw.recurrent.pipeline import MIN_ROWS
from tests.hw.recurrent.ports import head_fields, key_fields, row_fields, scale_list, set_load
from tests.hw.recurrent.states import Operands, random_state
from tests.hw.streams import simulate

CASES = [
    ("tiny", Rule(delta=True), False, "native", 0.0),
    ("tiny", Rule(decay_first=False), True, "gated", 0.3),
    ("tiny2", Rule(), False, "native", 0.2),
    ("bench64", Rule(delta=True, decay_first=False), True, "native", 0.0),
]


class Play:
    """Drives the path with one token of every head, in turn, and checks each output and row."""

    def __init__(self, dut: RecurrentPath, state: State, generator: torch.Generator, pause: float) -> None:
        self.dut, self.before, self.rng, self.pause = dut, state, random.Random(1), pause
        self.token, self.scales = random_token(state, generator), random_scales(state, generator)
        self.operands = Operands(state, self.token)
        self.after = copy.deepcopy(state)
        self.o = integer.step(self.after, self.token, scales=self.scales)
        self.issued: dict[int, tuple[int, int]] = {}  # by cycle
        self.cycle = 0
        self.checked = 0

    async def vectors(self, ctx: Any) -> None:
        """Load each head's vectors as soon as there is room."""
        for head in range(self.before.heads):
            for lane, query in enumerate((self.operands.query, self.operands.key_query)):
                set_load(ctx, self.dut.load, lane, query, head)
                ctx.set(self.dut.load.valid, 0)
                while not ctx.get(self.dut.load_ready):
                    await ctx.tick()
                set_load(ctx, self.dut.load, lane, query, head)
                await ctx.tick()
                ctx.set(self.dut.load.valid, 0)

    async def keys(self, ctx: Any) -> None:
        """Show each head's key until it is taken."""
        for head in range(self.before.heads):
            ctx.set(self.dut.key, key_fields(self.before, self.operands, head))
            await ctx.tick().until(self.dut.key_taken)

    async def rows(self, ctx: Any) -> None:
        """Issue the rows of all heads."""
        dut, state = self.dut, self.before
        while ctx.get(dut.full) != 3:
            await ctx.tick()
        for head in range(state.heads):
            for channel in range(state.channels):
                while self.rng.random() < self.pause:
                    await ctx.tick()
                ctx.set(dut.flags, {"row": 1, "first": channel == 0, "last": channel == state.channels - 1, "ends": 1,
                                    "opens": channel == 0})
                ctx.set(dut.row, row_fields(state, head, channel))
                ctx.set(dut.v, int(self.token.v[head, channel]))
                for port, byte in zip(dut.supplied, scale_list(self.scales[head, channel]), strict=True):
                    ctx.set(port, byte)
                if channel == 0:
                    ctx.set(dut.head, head_fields(state, self.operands, self.token.beta, head))
                self.issued[self.cycle + 1] = head, channel  # the watcher counts later in the cycle
                await ctx.tick()
                ctx.set(dut.flags, {})
            for _ in range(dut.gap):
                await ctx.tick()
        for _ in range(dut.latency + 2):
            await ctx.tick()

    async def watch(self, ctx: Any) -> None:
        """Compare what comes out with the model, at the stated times."""
        dut = self.dut
        while True:
            here = self.issued.get(self.cycle - dut.o_latency)
            assert ctx.get(dut.o_valid) == (here is not None)
            if here is not None:
                assert ctx.get(dut.o) == int(self.o[here]), f"o of {here}, {self.before.modes.each[here[0]]}"
                assert ctx.get(dut.o_last) == (here[1] == self.before.channels - 1)
            here = self.issued.get(self.cycle - dut.latency)
            assert ctx.get(dut.write_valid) == (here is not None and not self.operands.frozen[here[0]])
            assert ctx.get(dut.written) == (here is not None and here[1] == self.before.channels - 1)
            if here is not None:
                self.check_row(ctx, *here)
            await ctx.tick()
            self.cycle += 1

    def check_row(self, ctx: Any, head: int, channel: int) -> None:
        dut = self.dut
        what = f"row {channel} of head {head}, {self.before.modes.each[head]}"
        if not self.operands.frozen[head]:
            got = ctx.get(dut.write_row.as_value())
            assert got == dut.write_row.shape().const(row_fields(self.after, head, channel)).as_bits(), what
            if channel == self.before.channels - 1:
                assert ctx.get(dut.noise) == int(self.after.noise[head]), what
        self.checked += 1


@pytest.mark.parametrize(("name", "rule", "lane_decay", "multiplier", "pause"), CASES)
def test_rows_of_every_mode_equal_the_model(
    name: str, rule: Rule, lane_decay: bool, multiplier: Multiplier, pause: float
) -> None:
    g: Geometry = config(name)
    generator = torch.Generator().manual_seed(3)
    dut = RecurrentPath(g, multiplier=multiplier)
    modes = every_mode(not lane_decay)
    state = random_state(modes, rule, g, generator, channels=MIN_ROWS, lane_decay=lane_decay)
    play = Play(dut, state, generator, pause)
    simulate(dut, play.rows, background=[play.vectors, play.keys, play.watch], max_cycles=5000)
    assert play.checked == len(modes) * MIN_ROWS
    assert 0 < int(play.operands.frozen.sum()) < len(modes)
    assert int(play.after.rescaled.sum()) > 0
