"""Pre-training: truncated backpropagation through time over windows of carried state."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3_5ForCausalLM
from transformers.cache_utils import Cache

from statecell.store.quiet import quiet_transformers
from statecell.train import checkpoint
from statecell.train.carry import CarriedCache
from statecell.train.corpus import Corpus, targets_of
from statecell.train.recipe import Recipe
from statecell.train.shape import hybrid_config, new_model

_SAVE_S = 120.0
_CLIP = 1.0
_PROBE = (8, 1024)
"""Streams and tokens of the held-out loss that the log shows."""

Progress = Callable[[int, int, float], None]
"""Called with (steps done, steps in all, loss in bits per byte)."""


class Trainer:
    """A model in training: ``model`` or a new one, or where the checkpoint in ``folder`` left it.

    Raises TrainError for a checkpoint of another recipe. ``name`` is that of checkpoint and log.
    """

    name = "pretrain"

    def __init__(self, recipe: Recipe, corpus: Corpus, folder: Path, model: Qwen3_5ForCausalLM | None = None) -> None:
        self.recipe, self.corpus, self.folder = recipe, corpus, folder
        self.model = random_model(recipe) if model is None else model
        self.optimizers = self.new_optimizers()
        self.step = 0
        self._plain = recipe_values(recipe)
        state = checkpoint.load(self.checkpoint, self._plain)
        if state is not None:
            for name, module in self.modules.items():
                module.load_state_dict(state[name])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.step = state["step"]

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """What is trained, by its name in the checkpoint."""
        return {"model": self.model}

    def new_optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers of all `modules`."""
        recipe = self.recipe
        return optimizers(self.model, recipe.rate, recipe.rate_other, recipe.weight_decay)

    def cost(self, tokens: Tensor, cache: Cache) -> Tensor:
        """What is added to the loss of the pass just made over ``tokens`` [B, T] with ``cache``, in nats."""
        return torch.zeros(())

    @property
    def checkpoint(self) -> Path:
        """The file that a run goes on from."""
        return self.folder / f"{self.name}.pt"

    @property
    def log(self) -> Path:
        """Losses, one JSON object a line."""
        return self.folder / f"{self.name}.jsonl"

    @contextmanager
    def carried(self) -> Iterator[Cache]:
        """The cache of one window."""
        yield CarriedCache(self.model.config.layer_types or [])

    def run(self, progress: Progress | None = None, probe: Tensor | None = None, until: int | None = None) -> None:
        """Train to the recipe's last step, or to the first end of a window at or after ``until``.

        A checkpoint is written every two minutes and at the end; ``probe``: held-out bytes whose loss goes into the
        log with each.
        """
        last = self.recipe.steps if until is None else min(until, self.recipe.steps)
        saved = time.monotonic()
        loss = math.nan
        while self.step < last:
            loss = self.window(progress)
            if time.monotonic() - saved > _SAVE_S or self.step >= last:
                self.save(loss, probe)
                saved = time.monotonic()

    def window(self, progress: Progress | None = None) -> float:
        """One window of carried state; the last segment's loss in bits per byte."""
        recipe = self.recipe
        segments = recipe.segments(self.step)
        tokens = self.corpus.window(recipe.batch, segments * recipe.segment, recipe.seed, self.step,
                                    recipe.junk)
        bits = math.nan
        with self.carried() as cache:
            for part in range(segments):
                piece = tokens[:, part * recipe.segment:(part + 1) * recipe.segment + 1]
                bits = self.learn(piece, cache)
                if progress is not None:
                    progress(self.step, recipe.steps, bits)
        return bits

    def learn(self, piece: Tensor, cache: Cache) -> float:
        """One step on a segment [batch, segment + 1]; its loss in bits per byte."""
        rate(self.optimizers, self.recipe.factor(self.step))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.half), quiet_transformers():
            logits = self.model(piece[:, :-1], cache=cache, use_cache=True).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets_of(piece[:, 1:]).flatten())
        (loss + self.cost(piece[:, :-1], cache)).backward()
        for module in self.modules.values():
            torch.nn.utils.clip_grad_norm_(module.parameters(), _CLIP)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item() / math.log(2)

    def held_out(self, text: Tensor) -> float:
        """The model's loss on a held-out text, bits per byte."""
        return held_out(self.model, text)

    def save(self, loss: float, probe: Tensor | None = None) -> None:
        """Write the checkpoint and a line of the log."""
        state: dict[str, Any] = {name: module.state_dict() for name, module in self.modules.items()}
        state |= {"step": self.step, "optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}
        checkpoint.save(self.checkpoint, self._plain, state)
        line: dict[str, Any] = {"step": self.step, "train_bits_per_byte": loss}
        if probe is not None:
            line["held_out_bits_per_byte"] = self.held_out(probe)
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def random_model(recipe: Recipe) -> Qwen3_5ForCausalLM:
    """The model that a recipe begins with."""
    config = hybrid_config(hidden=recipe.hidden, intermediate=recipe.intermediate, memory=recipe.memory,
                           kv_heads=recipe.kv_heads)
    return new_model(config, recipe.memory, recipe.seed)


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON gives it back: what a checkpoint compares."""
    values: dict[str, Any] = json.loads(json.dumps(recipe.as_dict()))
    return values


def optimizers(model: torch.nn.Module, rate_matrix: float, rate_other: float,
               weight_decay: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embedding, convolutions, norms and decays."""
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else others).append(parameter)
    muon = torch.optim.Muon(matrices, lr=rate_matrix, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, lr=rate_other, betas=(0.9, 0.95), weight_decay=0.0)
    return [full_rate(muon), full_rate(adam)]


def full_rate(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer, with its learning rates noted as the full ones."""
    for group in optimizer.param_groups:
        group["full_lr"] = group["lr"]
    return optimizer


def rate(group_owners: list[torch.optim.Optimizer], factor: float) -> None:
    """Set every learning rate to ``factor`` of its full value."""
    for optimizer in group_owners:
        for group in optimizer.param_groups:
            group["lr"] = group["full_lr"] * factor


@torch.inference_mode()
def held_out(model: Qwen3_5ForCausalLM, text: Tensor) -> float:
    """Bits per byte over the second halves of evenly spread pieces of ``text``, in float32."""
    streams, tokens = _PROBE
    starts = torch.linspace(0, len(text) - tokens - 1, streams).long()
    pieces = torch.stack([text[s:s + tokens + 1] for s in starts.tolist()])
    with quiet_transformers():
        logits = model(pieces[:, :-1], use_cache=False).logits[:, tokens // 2:].float()
    return F.cross_entropy(logits.flatten(0, 1), pieces[:, tokens // 2 + 1:].flatten()).item() / math.log(2)
