from __future__ import annotations

from typing import Any

import pytest
import torch

from statecell.bench.random_states import every_mode
from statecell.model.recurrent.mode import Rule, Scales
from statecell.spec.geometry import config
from statecell_hw.array.multiply import Multiplier
from statecell_hw.recurrent.pipeline import MIN_ROWS
from statecell_hw.recurrent.writepath import WritePath
from tests.hw.recurrent.play import Play
from tests.hw.recurrent.ports import row_fields
from tests.hw.recurrent.states import random_state
from tests.hw.streams import simulate

D_TIME = 20


class WritePlay(Play):
    """Brings what is added to the rows, and checks the rows written back."""

    async def watch(self, ctx: Any) -> None:
        """Compare what comes out with the model, at the stated times."""
        dut, shape = self.dut, self.dut.write_row.shape()
        while True:
            here = self.row_of(D_TIME)
            ctx.set(dut.d, int(self.d[here[0], here[1] // self.before.halves]) if here is not None else 1234)
            here = self.row_of(dut.latency)
            writes = here is not None and not bool(self.operands.frozen[here[0]])
            assert ctx.get(dut.write_valid) == writes
            assert ctx.get(dut.written) == (here is not None and here[1] == self.rows_of_head - 1)
            if here is not None and writes:
                expected = shape.const(row_fields(self.after, *here)).as_bits()
                assert ctx.get(dut.write_row.as_value()) == expected, (here, self.before.modes.each[here[0]])
                if here[1] == self.rows_of_head - 1:
                    assert ctx.get(dut.noise) == int(self.after.noise[here[0]])
                self.checked += 1
            await ctx.tick()
            self.cycle += 1


@pytest.mark.parametrize(("name", "rule", "multiplier", "halves"), [
    ("tiny", Rule(delta=True), "gated", 1), ("tiny", Rule(delta=True), "native", 2)])
def test_rows_with_what_is_added(name: str, rule: Rule, multiplier: Multiplier, halves: int) -> None:
    generator = torch.Generator().manual_seed(5)
    dut = WritePath(config(name), d_time=D_TIME, multiplier=multiplier)
    modes = [mode for mode in every_mode(True) if halves == 1 or mode.scales != Scales.SUPPLIED]
    state = random_state(modes, rule, dut.geometry, generator, channels=MIN_ROWS, lane_decay=False, halves=halves)
    play = WritePlay(dut, state, generator, 0.0, head_late=True)
    simulate(dut, play.rows, background=[play.keys, play.watch], max_cycles=3000)
    assert play.checked == int((~play.operands.frozen).sum()) * play.rows_of_head > 0
