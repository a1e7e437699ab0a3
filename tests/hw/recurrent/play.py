"""One token of every head through a block of the row path, and what the integer model makes of it."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch

from statecell.bench.random_states import random_scales, random_token
from statecell.model.recurrent import integer
from statecell.model.recurrent.readout import read
from statecell.model.recurrent.state import State
from tests.hw.recurrent.ports import head_fields, key_fields, row_fields, scale_list, set_load
from tests.hw.recurrent.states import Operands


class Play:
    """Drives ports like RecurrentPath's with one token of every head, in turn.

    ``before`` and ``after``: the states; ``o``: the outputs; ``d``: what is added; ``issued``: (head, row) by cycle.
    head_late: the operands of a head come a cycle after its first row.
    """

    def __init__(self, dut: Any, state: State, generator: torch.Generator, pause: float, *, head_late: bool = False
                 ) -> None:
        self.dut, self.before, self.rng, self.pause = dut, state, random.Random(1), pause
        self.token, self.scales = random_token(state, generator), random_scales(state, generator)
        self.operands = Operands(state, self.token)
        self.after = copy.deepcopy(state)
        self.o = integer.step(self.after, self.token, scales=self.scales)
        self.issued: dict[int, tuple[int, int]] = {}  # by cycle
        self.cycle = 0
        self.rows_of_head = state.channels * state.halves
        self.checked = 0
        self.head_late = head_late
        _, r = read(state, self.operands.query, self.operands.lost).unbind(1)
        self.d = integer.added(state.rule, self.token, r)

    async def vectors(self, ctx: Any) -> None:
        """Load each head's vectors as soon as there is room."""
        for head in range(self.before.heads):
            for lane in range(2 * self.before.halves):
                set_load(ctx, self.dut.load, lane, self.operands.query, head)
                ctx.set(self.dut.load.valid, 0)
                while not ctx.get(self.dut.load_ready):
                    await ctx.tick()
                set_load(ctx, self.dut.load, lane, self.operands.query, head)
                await ctx.tick()
                ctx.set(self.dut.load.valid, 0)

    async def keys(self, ctx: Any) -> None:
        """Show each head's key until it is taken."""
        for head in range(self.before.heads):
            ctx.set(self.dut.key, key_fields(self.before, self.operands, head))
            while not ctx.get(self.dut.key_taken):
                await ctx.tick()
            await ctx.tick()

    async def rows(self, ctx: Any) -> None:
        """Issue the rows of all heads; vectors, if the block takes any, are there."""
        dut, state = self.dut, self.before
        await ctx.tick()
        while hasattr(dut, "full") and ctx.get(dut.full) != (1 << 2 * state.halves) - 1:
            await ctx.tick()
        for head in range(state.heads):
            for row in range(self.rows_of_head):
                channel, half = divmod(row, state.halves)
                while not half and self.rng.random() < self.pause:
                    await ctx.tick()
                first = row == 0
                ctx.set(dut.flags, {"row": 1, "first": first, "last": row == self.rows_of_head - 1, "ends": 1,
                                    "opens": first, "halves": state.halves - 1, "half": half})
                ctx.set(dut.row, row_fields(state, head, row))
                if hasattr(dut, "v"):
                    ctx.set(dut.v, int(self.token.v[head, channel]))
                if state.halves == 1 and hasattr(dut, "supplied"):
                    for port, byte in zip(dut.supplied, scale_list(self.scales[head, channel]), strict=True):
                        ctx.set(port, byte)
                fields = head_fields(state, self.operands, self.token.beta, head)
                if first and not self.head_late:
                    ctx.set(dut.head, fields)
                self.issued[self.cycle + 1] = head, row  # the watcher counts later in the cycle
                await ctx.tick()
                ctx.set(dut.flags, {})
                if first and self.head_late:
                    ctx.set(dut.head, fields)
            for _ in range(getattr(dut, "gap", 0)):
                await ctx.tick()
        for _ in range(200):
            await ctx.tick()

    def row_of(self, lead: int) -> tuple[int, int] | None:
        """(head, row) of ``lead`` cycles before."""
        return self.issued.get(self.cycle - lead)
