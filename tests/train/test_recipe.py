"""The default recipes are those that made the shipped model."""

from __future__ import annotations

import json

from statecell.store.models import model_folder
from statecell.train.finetune import FinetuneRecipe, RefineRecipe
from statecell.train.guarding import GuardRecipe
from statecell.train.pretrain import recipe_values
from statecell.train.recipe import Recipe
from statecell.train.run import NAME


def test_the_shipped_recipe_is_the_default() -> None:
    shipped = json.loads((model_folder(NAME) / "recipe.json").read_text())
    parts = {"pretraining": Recipe(), "finetuning": FinetuneRecipe(), "refining": RefineRecipe(),
             "guarding": GuardRecipe()}
    for part, recipe in parts.items():
        used = {key: value for key, value in shipped[part].items() if key != "held_out_bits_per_byte"}
        assert used == recipe_values(recipe)
