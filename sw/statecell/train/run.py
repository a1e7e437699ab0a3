"""A whole training: pre-training, fine-tuning over stored states in two runs, the guards, and the model's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from statecell.runtime.recurrent.calibration import StateCalibration, calibrate_states
from statecell.runtime.recurrent.guards import FILE as GUARDS_FILE
from statecell.runtime.recurrent.guards import guards_of
from statecell.store.models import load_model
from statecell.train.corpus import Corpus, text_bytes
from statecell.train.export import CALIBRATION_TEXT, CALIBRATION_TOKENS, export
from statecell.train.finetune import FineTuner, FinetuneRecipe, Refiner, RefineRecipe
from statecell.train.guarding import GuardRecipe, GuardTuner
from statecell.train.pretrain import Trainer
from statecell.train.recipe import HELD_OUT, Recipe, TrainError

NAME = "hybrid-tiny"
MODEL = "model"
"""Folder of the trained model inside the folder of its training."""
_CALIBRATION_WINDOW = 16384


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is called while the parts of a training run: with (steps done, in all, bits per byte) or (done, total)."""

    pretraining: Callable[[int, int, float], None]
    finetuning: Callable[[int, int, float], None]
    refining: Callable[[int, int, float], None]
    guarding: Callable[[int, int, float], None]
    exporting: Callable[[int, int], None]


def train(recipe: Recipe, finetune: FinetuneRecipe, refine: RefineRecipe, guard: GuardRecipe, folder: Path,
          stage: Stage, *, begin: str | None = None) -> dict[str, Any]:
    """Train in ``folder``, going on from its checkpoints; the model lies in ``folder``/model afterwards.

    ``begin``: name or folder of a model of this kind, which is refined and gets its guards, and nothing before. Returns
    facts for JSON: the folder, steps and held-out losses (bits per byte) after each part. Raises TrainError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    corpus = Corpus([text_bytes(name) for name in recipe.texts])
    probe = text_bytes(HELD_OUT)
    parts: list[tuple[str, type[FineTuner], Any, Callable[[int, int, float], None]]] = [
        ("refining", Refiner, refine, stage.refining), ("guarding", GuardTuner, guard, stage.guarding)]
    if begin is None:
        first = Trainer(recipe, corpus, folder)
        first.run(stage.pretraining, probe)
        model = first.model.eval()
        facts: dict[str, Any] = {"pretraining": _facts(first, probe)}
        parts.insert(0, ("finetuning", FineTuner, finetune, stage.finetuning))
    else:
        model, facts = _begun(begin)
    for name, kind, wanted, progress in parts:
        if wanted.steps:
            trainer = kind(wanted, corpus, folder, model, _calibration(model))
            trainer.run(progress, probe)
            facts[name] = _facts(trainer, probe)
    export(model, folder / MODEL, NAME, {"held_out": HELD_OUT, **facts}, progress=stage.exporting)
    return {"folder": str(folder / MODEL), **facts}


def _facts(trainer: Trainer, probe: Tensor) -> dict[str, Any]:
    return trainer.recipe.as_dict() | {"held_out_bits_per_byte": trainer.held_out(probe)}


def _calibration(model: Qwen3_5ForCausalLM) -> StateCalibration:
    ids = text_bytes(CALIBRATION_TEXT)[:CALIBRATION_TOKENS].tolist()
    return calibrate_states(model, ids, name=NAME, text=CALIBRATION_TEXT, window=_CALIBRATION_WINDOW)


def _begun(name: str) -> tuple[Qwen3_5ForCausalLM, dict[str, Any]]:
    """A trained model without guards, and what its recipe says of how it was made."""
    loaded = load_model(name)
    if not isinstance(loaded.model, Qwen3_5ForCausalLM):
        raise TrainError(f"{loaded.name} is a {type(loaded.model).__name__}: begin with a model made by "
                         "`statecell train`.")
    try:
        made = json.loads((loaded.folder / "recipe.json").read_text(encoding="utf-8"))
        facts = {part: made[part] for part in ("pretraining", "finetuning", "refining") if part in made}
    except (OSError, ValueError, TypeError) as error:
        raise TrainError(f"How {loaded.name} was made cannot be read ({error}): begin with a model made by "
                         "`statecell train`.") from error
    if guards_of(loaded.model) is not None:
        raise TrainError(f"{loaded.name} has trained guards already: begin with a model without "
                         f"{GUARDS_FILE}.")
    return loaded.model, facts


def restart(folder: Path) -> None:
    """Forget the checkpoints and logs in a folder."""
    for trainer in (Trainer, FineTuner, Refiner, GuardTuner):
        for ending in ("pt", "jsonl", "part"):
            (folder / f"{trainer.name}.{ending}").unlink(missing_ok=True)


def check_threads(threads: int) -> None:
    """Use so many threads. Raises TrainError for fewer than one: results differ between counts in the last bits."""
    if threads < 1:
        raise TrainError(f"The number of threads is {threads}: give at least 1.")
    torch.set_num_threads(threads)
