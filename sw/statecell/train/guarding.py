"""Training of the guards: freeze gate, error feedback and scale predictor learn over stored states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM
from transformers.cache_utils import Cache

from statecell.model.recurrent.named import DEFAULT
from statecell.runtime.recurrent.calibration import StateCalibration
from statecell.runtime.recurrent.guards import Guards, guards_of, put
from statecell.runtime.recurrent.modules import normalised
from statecell.train.corpus import JUNK, Corpus
from statecell.train.finetune import FineTuner, FinetuneRecipe
from statecell.train.pretrain import full_rate
from statecell.train.recipe import TrainError
from statecell.train.stored import StoredCache

_MARGIN = 0.5
"""Of a gate's linear part beyond its range."""
_WHOLE = ("int4", "int4", "int4-predicted", "int4", DEFAULT, "int4", "int4", "residual", "int4", "int4",
          "int4-predicted", "int4")


@dataclass(frozen=True, kw_only=True)
class GuardRecipe(FinetuneRecipe):
    """A run that trains the guards.

    ``rate_guards`` is AdamW's for them; the gates learn in every window, alpha in those whose format has error
    feedback, the predictor in those of predicted scales. ``write_cost``: nats that a gate on the wrong side of
    its range adds to the loss for each token: junk, or text.
    """

    steps: int = 32
    batch: int = 4
    segment: int = 128
    short: int = 4
    long: int = 4
    warmup: int = 2
    decay: float = 0.5
    states: tuple[str, ...] = ("int4-predicted", "residual", DEFAULT)
    rate_guards: float = 0.02
    write_cost: float = 1.0
    weights: bool = False
    """Whether the model's weights learn too."""

    @classmethod
    def whole(cls, **options: Any) -> GuardRecipe:
        """A longer run in which the model's weights learn with the guards."""
        long: dict[str, Any] = {"weights": True, "steps": 96, "batch": 8, "segment": 512, "short": 8, "long": 8,
                                "warmup": 8, "decay": 0.7, "rate_guards": 0.01, "states": _WHOLE}
        return cls(**long | options)

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
        model.requires_grad_(recipe.weights)
        super().__init__(recipe, corpus, folder, model, calibration)
        put(model, self.guards)

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """The model and its guards."""
        return {**super().modules, "guards": self.guards}

    def new_optimizers(self) -> list[torch.optim.Optimizer]:
        """AdamW for the guards, and the model's where its weights learn."""
        adam = torch.optim.AdamW(self.guards.parameters(), lr=self._rates.rate_guards, betas=(0.9, 0.95),
                                 weight_decay=0.0)
        return [*(super().new_optimizers() if self._rates.weights else []), full_rate(adam)]

    def cost(self, tokens: Tensor, cache: Cache) -> Tensor:
        """The cost of gates open for junk or closed for text, until they are so by a margin, and the predictors'."""
        assert isinstance(cache, StoredCache)
        embedding = normalised(self.model.get_input_embeddings()(tokens).detach())
        linear, junk = self.guards.freeze.linear(embedding), torch.isin(tokens, torch.tensor(JUNK))
        wrong = torch.where(junk[..., None, None], linear + _MARGIN, 1 + _MARGIN - linear).clamp(min=0)
        return self._rates.write_cost * wrong.mean() + cache.cost()
