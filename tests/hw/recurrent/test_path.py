"""Rows of all modes against the integer model, heads without a bubble between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from amaranth.hdl import Const

from statecell.bench.random_states import every_mode
from statecell.model.recurrent.mode import Rule, Scales
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.multiply import Multiplier
from statecell_hw.recurrent import path
from statecell_hw.recurrent.path import RecurrentPath
from statecell_hw.recurrent.pipeline import MIN_ROWS
from statecell_hw.recurrent.readout import Readout
from tests.hw.recurrent.play import Play
from tests.hw.recurrent.ports import row_fields
from tests.hw.recurrent.states import random_state
from tests.hw.streams import simulate

CASES = [
    ("tiny", Rule(delta=True), False, "native", 0.0),
    ("tiny", Rule(decay_first=False), True, "gated", 0.3),
    ("tiny2", Rule(), False, "native", 0.2),
    ("bench64", Rule(delta=True, decay_first=False), True, "native", 0.0),
]


class PathPlay(Play):
    """Checks each output and row."""

    async def watch(self, ctx: Any) -> None:
        """Compare what comes out with the model, at the stated times."""
        dut: Any = self.dut
        while True:
            halves = self.before.halves
            here = self.row_of(dut.o_latency)
            here = here if here is not None and here[1] % halves == halves - 1 else None
            assert ctx.get(dut.o_valid) == (here is not None)
            if here is not None:
                head, channel = here[0], here[1] // halves
                assert ctx.get(dut.o) == int(self.o[head, channel]), f"o of {here}, {self.before.modes.each[head]}"
                assert ctx.get(dut.o_last) == (channel == self.before.channels - 1)
            here = self.row_of(dut.latency + halves - 1)
            assert ctx.get(dut.write_valid) == (here is not None and not self.operands.frozen[here[0]])
            assert ctx.get(dut.written) == (here is not None and here[1] == self.rows_of_head - 1)
            if here is not None:
                self.check_row(ctx, *here)
            await ctx.tick()
            self.cycle += 1

    def check_row(self, ctx: Any, head: int, row: int) -> None:
        dut = self.dut
        what = f"row {row} of head {head}, {self.before.modes.each[head]}"
        if not self.operands.frozen[head]:
            got = ctx.get(dut.write_row.as_value())
            assert got == dut.write_row.shape().const(row_fields(self.after, head, row)).as_bits(), what
            if row == self.rows_of_head - 1:
                assert ctx.get(dut.noise) == int(self.after.noise[head]), what
        self.checked += 1


@pytest.mark.parametrize(("name", "rule", "lane_decay", "multiplier", "pause"), CASES)
def test_rows_of_every_mode_equal_the_model(
    name: str, rule: Rule, lane_decay: bool, multiplier: Multiplier, pause: float
) -> None:
    compare(name, rule, lane_decay, multiplier, pause, 1)


@pytest.mark.parametrize(("name", "rule", "multiplier", "pause"), [
    ("tiny", Rule(delta=True), "gated", 0.2), ("bench64", Rule(decay_first=False), "native", 0.0)])
def test_rows_of_channels_of_two_equal_the_model(
    name: str, rule: Rule, multiplier: Multiplier, pause: float
) -> None:
    compare(name, rule, False, multiplier, pause, 2)


def compare(name: str, rule: Rule, lane_decay: bool, multiplier: Multiplier, pause: float, halves: int) -> None:
    g: Geometry = config(name)
    generator = torch.Generator().manual_seed(2 + halves)
    dut = RecurrentPath(g, multiplier=multiplier)
    modes = every_mode(not lane_decay)
    if halves > 1:
        modes = [mode for mode in modes if mode.scales != Scales.SUPPLIED]
    state = random_state(modes, rule, g, generator, channels=MIN_ROWS, lane_decay=lane_decay, halves=halves)
    play = PathPlay(dut, state, generator, pause)
    simulate(dut, play.rows, background=[play.vectors, play.keys, play.watch], max_cycles=5000)
    assert play.checked == len(modes) * MIN_ROWS * halves
    assert 0 < int(play.operands.frozen.sum()) < len(modes)
    assert int(play.after.rescaled.sum()) > 0


WAITING = Readout._finish
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "the first half without the second's products": (path, "late", lambda m, halves, value, name: value),
    "the products of the second half alone": (
        Readout, "_finish", lambda self, m, pipe, stage, parts, sign, waits, name: WAITING(
            self, m, pipe, stage, parts, sign, Const(0), name)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_halves_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        compare("tiny", Rule(delta=True), False, "native", 0.0, 2)
