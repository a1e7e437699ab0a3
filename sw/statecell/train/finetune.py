"""Quantisation-aware fine-tuning: the pre-trained model goes on learning with its states as the array stores them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import Qwen3_5ForCausalLM
from transformers.cache_utils import Cache

from statecell.model.recurrent.named import DEFAULT, FORMATS
from statecell.runtime.engines import default_config
from statecell.runtime.recurrent.calibration import StateCalibration, plans
from statecell.runtime.recurrent.dispatch import chunked_rule, installed, rules_of
from statecell.runtime.recurrent.guards import Guards
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.support import model_geometry
from statecell.spec.geometry import config
from statecell.train.corpus import Corpus
from statecell.train.pretrain import Trainer
from statecell.train.recipe import Recipe, TrainError
from statecell.train.stored import StoredCache


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(Recipe):
    """A fine-tuning run: windows take the ``states`` formats in turn."""

    steps: int = 40
    batch: int = 8
    short: int = 8
    long: int = 8
    warmup: int = 8
    decay: float = 1.0
    rate: float = 0.0015
    rate_other: float = 0.0005
    half: bool = False
    junk: float = 0.5
    states: tuple[str, ...] = ("int4", DEFAULT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.states or any(name not in (DEFAULT, *FORMATS) for name in self.states):
            raise TrainError(f"The states' formats are {', '.join(self.states) or 'none'}: give some of {DEFAULT}, "
                             f"{', '.join(FORMATS)}.")


@dataclass(frozen=True, kw_only=True)
class RefineRecipe(FinetuneRecipe):
    """A second, longer run of the same kind, most of it over one-plane states, on other windows."""

    seed: int = 1
    steps: int = 96
    rate: float = 0.002
    rate_other: float = 0.0007
    junk: float = 0.25
    states: tuple[str, ...] = ("int4", "int4", DEFAULT, "int4")


class FineTuner(Trainer):
    """Trainer over stored states, from a pre-trained model and the calibration of its states."""

    name = "finetune"
    guards: Guards | None = None

    def __init__(self, recipe: FinetuneRecipe, corpus: Corpus, folder: Path, model: Qwen3_5ForCausalLM,
                 calibration: StateCalibration) -> None:
        super().__init__(recipe, corpus, folder, model)
        self._formats, self._windows = recipe.states, -(-self.step // recipe.long)
        shape, module = model_geometry(model).states, rules_of(model)
        assert shape is not None and module is not None, "a hybrid has states"
        self._shape, self._module, self._calibration = shape, module, calibration
        self._geometry = config(default_config(shape.dim))
        self._chunked = chunked_rule(module)

    @contextmanager
    def carried(self) -> Iterator[Cache]:
        """A window's cache, with its states in the next format."""
        states = ModelStates(self._geometry)
        name = self._formats[self._windows % len(self._formats)]
        chosen = plans(self._shape, states, name, self._calibration, self.guards)
        recurrent = dict(zip(self._shape.layers, chosen, strict=True))
        with installed(self._module):
            yield StoredCache(states, model_geometry(self.model).depth, recurrent, self._chunked, self.guards)
        self._windows += 1


class Refiner(FineTuner):
    """FineTuner of the second run."""

    name = "refine"
