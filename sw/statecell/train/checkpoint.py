"""State of a training run on disk: whole or not at all, and only for the recipe that wrote it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from statecell.train.recipe import TrainError


def save(path: Path, recipe: dict[str, Any], state: dict[str, Any]) -> None:
    """Write a checkpoint beside ``path`` and rename it over the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save({"recipe": recipe, **state}, part)
    part.rename(path)


def load(path: Path, recipe: dict[str, Any]) -> dict[str, Any] | None:
    """The state in a checkpoint, or None where there is none. Raises TrainError for one of another recipe."""
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        written = state.pop("recipe")
    except (OSError, RuntimeError, KeyError, EOFError, pickle.UnpicklingError, AttributeError) as error:
        raise TrainError(f"The checkpoint {path} cannot be read ({str(error).splitlines()[0]}): remove it and start "
                         "again.") from error
    changed = [name for name in recipe if written.get(name) != recipe[name]]
    if changed:
        raise TrainError(f"The checkpoint {path} was made with another recipe ({', '.join(changed)} differ): give its "
                         "values, another folder, or --restart.")
    return state
