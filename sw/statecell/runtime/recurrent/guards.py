"""Trained guards of a model's stored states: freeze gate, strength of the error feedback, predictor of scales."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch
from torch import nn

from statecell.runtime.arrayfile import load_arrays, save_arrays
from statecell.runtime.calibration import beside_weights
from statecell.runtime.errors import CalibrationError, UnsupportedError
from statecell.runtime.recurrent import dispatch, gating
from statecell.runtime.recurrent.modules import ErrorFeedback, FreezeGate, ScalePredictor, normalised
from statecell.runtime.support import StateGeometry, model_geometry, recurrent_modules
from statecell.spec import formats

FILE = "guards.safetensors"
"""Name of the guards beside the weights of a model."""
_FORMAT = "statecell guards 1"


class Guards(nn.Module):
    """The guards of a model with states of ``shape`` and embeddings of ``width``. ``seed``: of the first weights."""

    def __init__(self, shape: StateGeometry, width: int, seed: int = 0) -> None:
        super().__init__()
        layers = len(shape.layers)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.freeze = FreezeGate(width, layers, shape.heads)
            self.feedback = ErrorFeedback(layers, shape.heads)
            self.scales = nn.ModuleList(
                ScalePredictor(width, shape.heads, shape.channels) for _ in range(layers))

    @classmethod
    def new(cls, model: Any, seed: int = 0) -> Guards:
        """Untrained guards for a model. Raises UnsupportedError where it has no recurrent states."""
        shape = model_geometry(model).states
        if shape is None:
            raise UnsupportedError(f"a model of type {model.config.model_type} has no recurrent states, so there is "
                                   "nothing to guard")
        return cls(shape, model.get_input_embeddings().embedding_dim, seed)

    def predictor(self, layer: int) -> ScalePredictor:
        """The predictor of a recurrent layer, counted among these."""
        module = self.scales[layer]
        assert isinstance(module, ScalePredictor)
        return module

    def sixteenths(self, layer: int) -> list[int]:
        """Alpha of a layer's heads as the array takes it."""
        one = 1 << formats.FEEDBACK_FRACTION
        return [int(x) for x in torch.round(self.feedback()[layer].detach() * one).tolist()]

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        save_arrays(path, _FORMAT, {name: x.detach().float() for name, x in self.state_dict().items()}, {})

    def load(self, path: Path) -> None:
        """Take the values in a file written by `save`. Raises CalibrationError where it is damaged or does not fit."""
        mine = self.state_dict()
        arrays, _ = load_arrays(path, _FORMAT, list(mine))
        if any(x.shape != mine[name].shape or not bool(torch.isfinite(x).all()) for name, x in arrays.items()):
            raise CalibrationError(f"{path} holds guards of another model, or damaged ones; train them again")
        self.load_state_dict(arrays)


_guards: weakref.WeakKeyDictionary[Any, Guards] = weakref.WeakKeyDictionary()


def guards_of(model: Any) -> Guards | None:
    """The guards in force for a model; those beside its weights are put there first. None where there are none."""
    if model not in _guards and dispatch.rules_of(model) is not None:
        path = next((path for path in beside_weights(model, FILE) if path.is_file()), None)
        if path is not None:
            guards = Guards.new(model)
            guards.load(path)
            put(model, guards)
    return _guards.get(model)


def put(model: Any, guards: Guards) -> None:
    """Put guards in force for a model: from now on its freeze gates act in every forward pass, stored states or not."""
    module, shape = dispatch.rules_of(model), model_geometry(model).states
    assert module is not None and shape is not None, "guards are made for a model with states"
    known = model in _guards
    _guards[model] = guards
    if known:
        return
    dispatch.install(module)
    weakref.finalize(model, dispatch.uninstall, module).atexit = False
    owner = weakref.ref(model)

    def begin(_: Any, args: tuple, kwargs: dict) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        embedding = normalised(hidden.detach())
        gating.begin(embedding, _guards[owner()].freeze(embedding))

    def leave(layer: Any, args: tuple, kwargs: dict, _: Any) -> None:
        known, cache = gating.leave(), kwargs.get("cache")
        if known is not None and known.inputs is not None and cache is not None:
            cache.layers[layer.layer_idx].conv_states[0] = known.inputs.detach()

    model.get_decoder().layers[0].register_forward_pre_hook(begin, with_kwargs=True)
    for number, recurrent in enumerate(recurrent_modules(model, shape.layers)):
        recurrent.register_forward_pre_hook(lambda *_, number=number: gating.enter(number))
        recurrent.register_forward_hook(leave, with_kwargs=True, always_call=True)
