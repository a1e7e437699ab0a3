"""Training of the guards: freeze gate, error feedback and scale predictor learn with the model, over stored states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM
from transformers.cache_utils import Cache

from statecell.runtime.recurrent import gating
from statecell.runtime.recurrent.calibration import StateCalibration
from statecell.runtime.recurrent.guards import Guards, guards_of, put
from statecell.train.corpus import JUNK, Corpus
from statecell.train.finetune import FineTuner, FinetuneRecipe
from statecell.train.pretrain import full_rate
from statecell.train.recipe import TrainError
from statecell.train.stored import StoredCache


@dataclass(frozen=True, kw_only=True)
class GuardRecipe(FinetuneRecipe):
    """A run that trains the guards too.

    ``rate_guards`` is AdamW's for them; the gates learn in every window, alpha in those whose format has error
    feedback, the predictor in those of predicted scales. ``write_cost``: nats that writing all of the junk adds to the
    loss, so that the gates close on it; the loss itself keeps them open on the text.
    """

    steps: int = 96
    decay: float = 0.7
    states: tuple[str, ...] = ("int4", "int4", "int4-predicted", "int4", "default", "int4", "int4", "residual", "int4",
                               "int4", "int4-predicted", "int4")
    rate_guards: float = 0.01
    write_cost: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate_guards < 0 or self.write_cost < 0:
            raise TrainError(f"The guards' learning rate is {self.rate_guards} and the cost of a write "
                             f"{self.write_cost}: give 0 or more.")


class GuardTuner(FineTuner):
    """FineTuner that puts guards in force for the model, those that it has or new ones, and trains them."""

    name = "guards"

    def __init__(self, recipe: GuardRecipe, corpus: Corpus, folder: Path, model: Qwen3_5ForCausalLM,
                 calibration: StateCalibration) -> None:
        known = guards_of(model)
        self.guards: Guards = Guards.new(model, recipe.seed) if known is None else known
        self._rates = recipe
        super().__init__(recipe, corpus, folder, model, calibration)
        put(model, self.guards)

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """The model and its guards."""
        return {**super().modules, "guards": self.guards}

    def new_optimizers(self) -> list[torch.optim.Optimizer]:
        """The model's, and AdamW for the guards."""
        adam = torch.optim.AdamW(self.guards.parameters(), lr=self._rates.rate_guards, betas=(0.9, 0.95),
                                 weight_decay=0.0)
        return [*super().new_optimizers(), full_rate(adam)]

    def cost(self, tokens: Tensor, cache: Cache) -> Tensor:
        """The cost of the junk that was written, and the predictors'."""
        assert isinstance(cache, StoredCache)
        junk = torch.isin(tokens, torch.tensor(JUNK))
        written = gating.gates()[junk].sum() / max(1, int(junk.sum()) * len(self._shape.layers) * self._shape.heads)
        return self._rates.write_cost * written + cache.cost()
