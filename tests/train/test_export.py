"""An exported folder opens as any model does, with tokenizer and calibrations, in half the bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from statecell.runtime import calibration as calibrations
from statecell.runtime.recurrent.calibration import known_states
from statecell.store.models import load_model
from statecell.train.pretrain import random_model
from tests.hybrid_folder import make_hybrid_folder
from tests.train.small import recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hybrid_folder(tmp_path_factory.mktemp("export") / "small")


def test_the_folder_holds_a_whole_model(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path))
    loaded = load_model(folder)
    assert type(loaded.model).__name__ == "Qwen3_5ForCausalLM" and loaded.model.dtype == torch.float32
    assert loaded.tokenizer("Zoë")["input_ids"] == list("Zoë".encode())
    assert loaded.model.generation_config.eos_token_id == 256
    for name, weight in random_model(recipe()).state_dict().items():
        scale = 8 if weight.ndim == 2 else 1
        assert torch.equal(loaded.model.state_dict()[name], (scale * weight).half().float()), name
    assert json.loads((folder / "recipe.json").read_text())["seed"] == 0
    assert "Apache License" in (folder / "LICENSE.txt").read_text()
    assert (folder / "model.safetensors").stat().st_size < 2.1 * sum(p.numel() for p in loaded.model.parameters()) + 9e3
    assert not list(folder.glob("*.part"))
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}


def test_its_calibrations_are_found(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path))
    model = load_model(folder).model
    used = calibrations.known(model)
    assert used is not None and used.k_mean.shape == (1, 1, 64)
    states = known_states(model)
    assert states is not None and states.decay.shape == (2, 2)
    # the heads forget as the recipe says: exp(-1 / tokens), moved a little by the random layers
    assert torch.allclose(states.decay, torch.exp(-1 / torch.tensor([[4.0, 64.0], [16.0, 256.0]])), atol=0.1)
    assert bool((states.decay[:, 1] > states.decay[:, 0]).all())
