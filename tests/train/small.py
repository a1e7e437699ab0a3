"""A recipe that trains in seconds, and a text that is easy to learn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statecell.train.finetune import FinetuneRecipe, RefineRecipe
from statecell.train.guarding import GuardRecipe
from statecell.train.recipe import Recipe

_SMALL: dict[str, Any] = {"texts": ("emma",), "steps": 8, "batch": 2, "segment": 32, "short": 2, "long": 2, "warmup": 2,
                          "hidden": 32, "intermediate": 32, "kv_heads": 1, "memory": ((4.0, 64.0), (16.0, 256.0))}


def recipe(**options: Any) -> Recipe:
    return Recipe(**{**_SMALL, "rate": 0.02, "rate_other": 0.02, **options})


def finetune_recipe(**options: Any) -> FinetuneRecipe:
    return FinetuneRecipe(**{**_SMALL, "half": False, "states": ("int4-log8",), **options})


def refine_recipe(**options: Any) -> RefineRecipe:
    return RefineRecipe(**{**_SMALL, "states": ("int4",), **options})


def guard_recipe(**options: Any) -> GuardRecipe:
    return GuardRecipe(**{**_SMALL, "half": False, "rate_guards": 0.02, "weights": True, **options})


def text() -> Tensor:
    return torch.tensor(list(b"All work and no play makes Jack a dull boy.\n" * 50))
