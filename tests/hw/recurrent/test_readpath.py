from __future__ import annotations

from typing import Any

import pytest
import torch

from statecell.bench.random_states import every_mode
from statecell.model.recurrent.mode import Rule
from statecell.spec.geometry import config
from statecell_hw.array.multiply import Multiplier
from statecell_hw.recurrent.pipeline import MIN_ROWS
from statecell_hw.recurrent.readpath import ReadPath
from tests.hw.recurrent.play import Play
from tests.hw.recurrent.states import random_state
from tests.hw.streams import simulate


class ReadPlay(Play):
    """Checks outputs and what is added."""

    async def watch(self, ctx: Any) -> None:
        """Compare what comes out with the model, at the stated times."""
        dut, halves = self.dut, self.before.halves
        while True:
            here = self.row_of(dut.o_latency)
            ends = here is not None and here[1] % halves == halves - 1
            assert ctx.get(dut.o_valid) == ends and not ctx.get(dut.d_valid)
            if here is not None and ends:
                assert ctx.get(dut.o) == int(self.o[here[0], here[1] // halves]), here
                assert ctx.get(dut.o_last) == (here[1] == self.rows_of_head - 1)
                self.checked += 1
            for later in range(halves):  # d of both rows of a channel
                here = self.row_of(dut.d_latency + later)
                if here is not None and here[1] % halves == halves - 1:
                    assert ctx.get(dut.d) == int(self.d[here[0], here[1] // halves]), here
            await ctx.tick()
            self.cycle += 1


@pytest.mark.parametrize(("name", "rule", "multiplier", "halves"), [
    ("tiny", Rule(delta=True), "gated", 1), ("tiny2", Rule(decay_first=False), "native", 1),
    ("tiny", Rule(delta=True), "native", 2)])
def test_outputs_and_errors_of_rows(name: str, rule: Rule, multiplier: Multiplier, halves: int) -> None:
    generator = torch.Generator().manual_seed(5)
    dut = ReadPath(config(name), multiplier=multiplier)
    modes = every_mode(True)[::2]
    state = random_state(modes, rule, dut.geometry, generator, channels=MIN_ROWS, lane_decay=False, halves=halves)
    play = ReadPlay(dut, state, generator, 0.1 if multiplier == "native" else 0.0)
    simulate(dut, play.rows, background=[play.vectors, play.watch], max_cycles=3000)
    assert play.checked == len(modes) * MIN_ROWS
