"""Training learns, goes on where it was interrupted bit for bit, and refuses what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from statecell.train import pretrain
from statecell.train.corpus import Corpus
from statecell.train.pretrain import Trainer, held_out
from statecell.train.recipe import Recipe, TrainError
from tests.train.small import recipe, text


def trained(folder: Path, until: int | None = None, **options: object) -> Trainer:
    trainer = Trainer(recipe(**options), Corpus([text()]), folder)
    trainer.run(until=until)
    return trainer


def test_a_few_steps_reduce_the_loss(tmp_path: Path) -> None:
    losses: list[float] = []
    trainer = Trainer(recipe(steps=24), Corpus([text()]), tmp_path)
    before = held_out(trainer.model, text())
    trainer.run(lambda done, total, bits: losses.append(bits), probe=text())
    assert len(losses) == 24
    assert held_out(trainer.model, text()) < 0.7 * before
    line = json.loads((tmp_path / "pretrain.jsonl").read_text().splitlines()[-1])
    assert line["step"] == 24 and line["held_out_bits_per_byte"] == held_out(trainer.model, text())


@pytest.mark.parametrize("half", [False, True])
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path, half: bool) -> None:
    whole = trained(tmp_path / "whole", half=half)
    trained(tmp_path / "parts", until=3, half=half)
    resumed = Trainer(recipe(half=half), Corpus([text()]), tmp_path / "parts")
    assert resumed.step == 4  # the end of the window
    resumed.run()
    assert resumed.step == whole.step == 8
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    other = trained(tmp_path / "other", seed=1, half=half)
    assert not torch.equal(next(other.model.parameters()), next(whole.model.parameters()))


def test_without_the_optimizers_state_the_test_above_fails(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")
    trained(tmp_path / "parts", until=3)
    path = tmp_path / "parts" / "pretrain.pt"
    state = torch.load(path, weights_only=True)
    for optimizer in state["optimizers"]:
        optimizer["state"] = {}
    torch.save(state, path)
    resumed = trained(tmp_path / "parts")
    assert not torch.equal(next(whole.model.parameters()), next(resumed.model.parameters()))


def test_states_are_carried_within_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second segment's loss is that of the same model over both segments at once."""
    trainer = Trainer(recipe(half=False), Corpus([text()]), tmp_path)
    piece = trainer.corpus.window(2, 64, 0, 0)
    with trainer.carried() as cache, torch.no_grad():
        first = trainer.model(piece[:, :32], cache=cache, use_cache=True).logits
        second = trainer.model(piece[:, 32:64], cache=cache, use_cache=True).logits
        whole = trainer.model(piece[:, :64], use_cache=False).logits
    assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-4)
    assert not torch.allclose(second, trainer.model(piece[:, 32:64], use_cache=False).logits, atol=1e-2)
    assert pretrain.recipe_values(trainer.recipe)["memory"] == [[4.0, 64.0], [16.0, 256.0]]


def test_refusals(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(TrainError, match=r"made with another recipe \(seed differ\)"):
        trained(tmp_path, seed=1)
    (tmp_path / "pretrain.pt").write_bytes(b"x")
    with pytest.raises(TrainError, match="cannot be read"):
        trained(tmp_path)
    with pytest.raises(TrainError, match="held out"):
        Recipe(texts=("persuasion",))
    with pytest.raises(TrainError, match="batch is 0"):
        Recipe(batch=0)
    with pytest.raises(TrainError, match="No text has the 65 bytes"):
        Trainer(recipe(), Corpus([text()[:60]]), tmp_path / "short").run()


def test_the_learning_rate_rises_stays_and_falls() -> None:
    plan = Recipe(steps=100, warmup=10, decay=0.5)
    assert [plan.factor(step) for step in (0, 9, 30, 50, 75, 99)] == pytest.approx([0.1, 1, 1, 1, 0.5, 0.02])
    assert Recipe(steps=100, short=2, long=8).segments(10) == 2
    assert Recipe(steps=100, short=2, long=8).segments(60) == 8
    assert Recipe(steps=100, short=2, long=8).segments(97) == 3
