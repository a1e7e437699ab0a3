"""Training of the guards: gradients reach each of them, gates close on junk, and a run resumes bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from statecell.runtime.recurrent.calibration import StateCalibration, calibrate_states
from statecell.runtime.recurrent.guards import guards_of
from statecell.runtime.recurrent.modules import normalised
from statecell.train.corpus import JUNK, Corpus
from statecell.train.guarding import GuardRecipe, GuardTuner
from statecell.train.pretrain import random_model
from statecell.train.recipe import TrainError
from tests.train.small import guard_recipe, recipe, text


@pytest.fixture(scope="module")
def calibration() -> StateCalibration:
    return calibrate_states(random_model(recipe()), text()[:512].tolist(), name="small", text="none", window=256)


def tuner(folder: Path, calibration: StateCalibration, **options: Any) -> GuardTuner:
    return GuardTuner(guard_recipe(**options), Corpus([text()]), folder, random_model(recipe()), calibration)


@pytest.mark.parametrize(("state_format", "trained"), [("int4", {"freeze"}), ("residual", {"freeze", "feedback"}),
                                                       ("int4-predicted", {"freeze", "scales"})])
def test_a_window_trains_the_guards_of_its_format(tmp_path: Path, calibration: StateCalibration, state_format: str,
                                                  trained: set[str]) -> None:
    one = tuner(tmp_path, calibration, states=(state_format,), steps=6)
    before = {name: value.clone() for name, value in one.guards.state_dict().items()}
    one.run()
    changed = {name.split(".")[0] for name, value in one.guards.state_dict().items()
               if not torch.equal(value, before[name])}
    assert changed == trained
    assert guards_of(one.model) is one.guards


def test_the_cost_of_writing_closes_the_gate_of_junk_alone(tmp_path: Path, calibration: StateCalibration) -> None:
    one = tuner(tmp_path, calibration, states=("int8",), steps=40, junk=1.0, rate_guards=0.05)
    one.run()
    embedding = normalised(one.model.model.embed_tokens.weight.detach())
    with torch.no_grad():
        gates = one.guards.freeze(embedding[None])[0].mean((1, 2))
    assert float(gates[JUNK[0]]) == 0 and float(gates[text().unique()].mean()) > 0.9


def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path, calibration: StateCalibration) -> None:
    states = ("int4", "int4-predicted", "residual")
    whole = tuner(tmp_path / "whole", calibration, states=states)
    whole.run()
    tuner(tmp_path / "parts", calibration, states=states).run(until=3)
    resumed = tuner(tmp_path / "parts", calibration, states=states)
    assert resumed.step == 4
    resumed.run()
    for name, module in whole.modules.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, resumed.modules[name].state_dict()[key]), key
    assert not torch.equal(whole.guards.freeze.bias, torch.full_like(whole.guards.freeze.bias, 2.0))


def test_the_weights_stay_where_only_the_guards_learn(tmp_path: Path, calibration: StateCalibration) -> None:
    one = tuner(tmp_path, calibration, weights=False)
    one.run()
    for value, first in zip(one.model.parameters(), random_model(recipe()).parameters(), strict=True):
        assert torch.equal(value, first)
    assert float((one.guards.freeze.bias.detach() - 2).abs().max()) > 0
    assert GuardRecipe.whole(seed=3).weights and GuardRecipe.whole(seed=3).seed == 3


def test_refusals() -> None:
    with pytest.raises(TrainError, match="cost of a write -1"):
        GuardRecipe(write_cost=-1)
    with pytest.raises(TrainError, match="formats are int3: give some of default"):
        GuardRecipe(states=("int3",))
