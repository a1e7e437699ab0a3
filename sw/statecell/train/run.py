"""A whole training: pre-training, fine-tuning over stored states, and the model's folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from statecell.runtime.recurrent.calibration import calibrate_states
from statecell.train.corpus import Corpus, text_bytes
from statecell.train.export import CALIBRATION_TEXT, CALIBRATION_TOKENS, export
from statecell.train.finetune import FineTuner, FinetuneRecipe
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
    exporting: Callable[[int, int], None]


def train(recipe: Recipe, finetune: FinetuneRecipe, folder: Path, stage: Stage) -> dict[str, Any]:
    """Train in ``folder``, going on from its checkpoints; the model lies in ``folder``/model afterwards.

    Returns facts for JSON: the folder, steps and held-out losses (bits per byte) after each part. Raises TrainError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    corpus = Corpus([text_bytes(name) for name in recipe.texts])
    probe = text_bytes(HELD_OUT)
    first = Trainer(recipe, corpus, folder)
    first.run(stage.pretraining, probe)
    model = first.model.eval()
    done = recipe.as_dict() | {"held_out_bits_per_byte": first.held_out(probe)}
    facts: dict[str, Any] = {"pretraining": done}
    if finetune.steps:
        ids = text_bytes(CALIBRATION_TEXT)[:CALIBRATION_TOKENS].tolist()
        calibration = calibrate_states(model, ids, name=NAME, text=CALIBRATION_TEXT, window=_CALIBRATION_WINDOW)
        second = FineTuner(finetune, corpus, folder, model, calibration)
        second.run(stage.finetuning, probe)
        facts["finetuning"] = finetune.as_dict() | {"held_out_bits_per_byte": second.held_out(probe)}
    export(model, folder / MODEL, NAME, {"held_out": HELD_OUT, **facts}, progress=stage.exporting)
    return {"folder": str(folder / MODEL), **facts}


def restart(folder: Path) -> None:
    """Forget the checkpoints and logs in a folder."""
    for trainer in (Trainer, FineTuner):
        for ending in ("pt", "jsonl", "part"):
            (folder / f"{trainer.name}.{ending}").unlink(missing_ok=True)


def check_threads(threads: int) -> None:
    """Use so many threads. Raises TrainError for fewer than one: results differ between counts in the last bits."""
    if threads < 1:
        raise TrainError(f"The number of threads is {threads}: give at least 1.")
    torch.set_num_threads(threads)
