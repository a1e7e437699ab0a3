"""A trained model as a folder that `load_model` opens: float16 weights, guards, tokenizer, calibrations, recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from statecell.runtime import calibration as calibrations
from statecell.runtime.recurrent import calibration as state_calibrations
from statecell.runtime.recurrent.calibration import calibrate_states
from statecell.runtime.recurrent.guards import FILE as GUARDS_FILE
from statecell.runtime.recurrent.guards import guards_of
from statecell.store.byte_tokenizer import save_byte_tokenizer
from statecell.store.paths import whole_folder
from statecell.train.corpus import text_bytes
from statecell.train.shape import END, PAD

CALIBRATION_TEXT = "emma"
CALIBRATION_TOKENS = 65536
_WINDOW = 16384
_NOTICE = """\
These weights were trained by statecell from random numbers, on texts whose copyright has expired; recipe.json says how.
They are licensed under the Apache License, Version 2.0, as the rest of statecell is: see the file LICENSE of the
project, or <https://www.apache.org/licenses/LICENSE-2.0>.
"""


def export(model: PreTrainedModel, folder: Path, name: str, recipe: Mapping[str, Any], *,
           progress: Callable[[int, int], None] | None = None) -> None:
    """Write ``model``, called ``name``, into ``folder`` (replaced as a whole), rounded to float16 and calibrated so.

    ``recipe``: what was done, for recipe.json. ``progress`` counts the calibration's tokens.
    """
    with whole_folder(folder) as work:
        model.config.architectures = [type(model).__name__]
        model.config.dtype = torch.float16
        model.config.save_pretrained(work)
        GenerationConfig(eos_token_id=END, pad_token_id=PAD).save_pretrained(work)
        tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
        weights = {name: value.detach().half().contiguous() for name, value in model.state_dict().items()
                   if name not in tied}
        save_file(weights, work / "model.safetensors", metadata={"format": "pt"})
        guards = guards_of(model)
        if guards is not None:
            guards.save(work / GUARDS_FILE)
        save_byte_tokenizer(work)
        (work / "LICENSE.txt").write_text(_NOTICE, encoding="utf-8")
        made_with = {name: metadata.version(name) for name in ("statecell", "torch", "transformers")}
        (work / "recipe.json").write_text(json.dumps({"name": name, **recipe, "made_with": made_with}, indent=1) + "\n",
                                          encoding="utf-8")
        calibrate(work, name, progress)
        for file in (work, *work.iterdir()):  # temporary folders and safetensors' files are their owner's alone
            file.chmod(0o755 if file.is_dir() else 0o644)


def calibrate(folder: Path, name: str, progress: Callable[[int, int], None] | None = None) -> None:
    """Measure the calibrations of the model in ``folder`` and put them beside its weights."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    guards_of(model)  # in force from now on
    ids = text_bytes(CALIBRATION_TEXT)[:CALIBRATION_TOKENS].tolist()
    states = calibrate_states(model, ids, name=name, text=CALIBRATION_TEXT, window=_WINDOW, progress=progress)
    states.save(folder / state_calibrations.FILE)
    rows = calibrations.calibrate(model, ids, name=name, text=CALIBRATION_TEXT, window=4096)
    rows.save(folder / calibrations.FILE)
