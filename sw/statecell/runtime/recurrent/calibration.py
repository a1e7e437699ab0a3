"""Measured once per model and kept: each recurrent head's decay, and the largest values and states it meets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statecell.model.recurrent.families import GatedDeltaNet
from statecell.model.recurrent.host import Units
from statecell.model.recurrent.mode import Mode, Scales, Storage
from statecell.model.recurrent.named import DEFAULT, FORMATS, SLOW, default_modes
from statecell.runtime.arrayfile import load_arrays, save_arrays
from statecell.runtime.calibration import beside_weights, fingerprint
from statecell.runtime.errors import CalibrationError, UnsupportedError
from statecell.runtime.recurrent import gating
from statecell.runtime.recurrent.dispatch import FUNCTIONS, rules_of
from statecell.runtime.recurrent.engine import StateEngine, StateShape, halves_of
from statecell.runtime.recurrent.guards import FILE as GUARDS_FILE
from statecell.runtime.recurrent.guards import Guards
from statecell.runtime.recurrent.layer import LayerPlan
from statecell.runtime.recurrent.units import delta_tokens, delta_units
from statecell.runtime.support import StateGeometry, model_geometry
from statecell.store.paths import calibrations_folder
from statecell.store.quiet import quiet_transformers

_FORMAT = "statecell state calibration 1"
_ARRAYS = ("decay", "value_peak", "state_peak")
FILE = "states.safetensors"
"""Name of a calibration beside the weights of a model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StateCalibration:
    """Of every recurrent layer and value head, float32 [layers, H]: ``decay`` (geometric mean of g), ``value_peak`` and
    ``state_peak`` (largest magnitudes of v and of a state's elements), on ``tokens`` tokens of ``text``.
    """

    model: str
    text: str
    tokens: int
    decay: Tensor
    value_peak: Tensor
    state_peak: Tensor

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        facts = {"model": self.model, "text": self.text, "tokens": self.tokens}
        save_arrays(path, _FORMAT, {name: getattr(self, name).float() for name in _ARRAYS}, facts)

    @classmethod
    def load(cls, path: Path) -> StateCalibration:
        """Read a file written by `save`. Raises CalibrationError where it is damaged or of another kind."""
        arrays, facts = load_arrays(path, _FORMAT, _ARRAYS)
        shape = arrays["decay"].shape
        whole = all(x.shape == shape and bool(torch.isfinite(x).all()) for x in arrays.values())
        if len(shape) != 2 or not whole or bool(((arrays["decay"] <= 0) | (arrays["decay"] > 1)).any()):
            raise CalibrationError(f"{path} holds a damaged calibration (decays in (0, 1] and finite peaks of one "
                                   "shape were expected); make a new one")
        return cls(**facts, **arrays)


def state_path(wanted: str) -> Path:
    """Where the user's own calibration of the states of a model with this fingerprint lies."""
    return calibrations_folder() / f"{wanted[:32]}-states.safetensors"


def known_states(model: Any) -> StateCalibration | None:
    """The calibration of a model's states: the user's own, else the one beside its weights, else None."""
    paths = [state_path(fingerprint(model)), *beside_weights(model, FILE)]
    return next((StateCalibration.load(path) for path in paths if path.is_file()), None)


def plans(states: StateGeometry, engine: StateEngine, state_format: str, calibration: StateCalibration | None,
          guards: Guards | None = None) -> list[LayerPlan]:
    """A plan for each recurrent layer of a model: ``state_format`` is `default` or a name of `named.FORMATS`.

    Without a calibration the default stores every head in two planes, and units come from the first tokens. Predicted
    scales and the strength of the error feedback are those of ``guards``. Raises UnsupportedError for another format,
    one that the engine does not keep, or predicted scales without guards, CalibrationError for a calibration of another
    shape.
    """
    if state_format not in (DEFAULT, *FORMATS):
        raise UnsupportedError(f"The state format '{state_format}' is not known: use one of {DEFAULT}, "
                               f"{', '.join(FORMATS)}.")
    layers, heads = len(states.layers), states.heads
    shape = StateShape(rule=GatedDeltaNet.rule, channels=states.channels,
                       halves=halves_of(states.dim, engine.geometry.head_dim))
    mode = FORMATS[SLOW if state_format == DEFAULT else state_format]
    if mode.scales == Scales.SUPPLIED and guards is None:
        raise UnsupportedError(f"The state format '{state_format}' needs a trained scale predictor, {GUARDS_FILE} "
                               "beside the weights, and there is none: use int4, or `statecell train`.")
    if calibration is None:
        engine.check_modes([mode], shape)
        return [_plan([mode] * heads, None, guards, i) for i in range(layers)]
    if tuple(calibration.decay.shape) != (layers, heads):
        raise CalibrationError(f"the calibration of {calibration.model} is for {tuple(calibration.decay.shape)} layers "
                               f"and heads, the model has {(layers, heads)}; calibrate this model")
    modes = default_modes(calibration.decay.flatten().tolist(), engine.geometry) if state_format == DEFAULT else \
        [FORMATS[state_format]] * (layers * heads)
    engine.check_modes(modes, shape)
    return [_plan(modes[i * heads:(i + 1) * heads],
                  delta_units(calibration.value_peak[i], calibration.state_peak[i], states.dim), guards, i)
            for i in range(layers)]


def _plan(modes: Sequence[Mode], units: Units | None, guards: Guards | None, layer: int) -> LayerPlan:
    """The plan of one layer, with the guards that its modes use."""
    if guards is None:
        return LayerPlan(modes=modes, units=units)
    supplied = any(mode.scales == Scales.SUPPLIED for mode in modes)
    blind = any(mode.storage == Storage.RESIDUAL for mode in modes)
    return LayerPlan(modes=modes, units=units, predictor=guards.predictor(layer) if supplied else None,
                     feedback=guards.sixteenths(layer) if blind else None)


def calibrate_states(model: Any, token_ids: Sequence[int], *, name: str, text: str, window: int = 4096,
                     progress: Callable[[int, int], None] | None = None) -> StateCalibration:
    """Measure a calibration: the float model reads ``token_ids`` in fresh windows; ``progress`` counts tokens.

    A state's peak is taken from the states at the ends of blocks of at most 64 tokens. Raises CalibrationError without
    tokens, UnsupportedError for a model without Gated DeltaNet layers, NotFiniteError for NaN or infinity.
    """
    module, states = rules_of(model), model_geometry(model).states
    if module is None or states is None:
        raise UnsupportedError(f"a model of type {model.config.model_type} has no Gated DeltaNet layers, so there are "
                               "no states to calibrate")
    if not len(token_ids):
        raise CalibrationError("the calibration text has no tokens, some thousands were expected; give a longer text")
    seen = _Seen(len(states.layers))
    originals = [getattr(module, function) for function in FUNCTIONS]
    for function in FUNCTIONS:
        setattr(module, function, seen.recorder(originals[0]))
    try:
        for begin in range(0, len(token_ids), window):
            ids = torch.tensor([list(token_ids[begin:begin + window])])
            # open gates: the recorder computes in blocks of its own, and the text is none that would be frozen
            with torch.inference_mode(), quiet_transformers(), gating.all_open():
                model(ids, use_cache=False)
            if progress is not None:
                progress(min(begin + window, len(token_ids)), len(token_ids))
    finally:
        for function, original in zip(FUNCTIONS, originals, strict=True):
            setattr(module, function, original)
    return StateCalibration(
        model=name, text=text, tokens=len(token_ids),
        decay=torch.stack([x.exp() for x in seen.log_decay]),
        value_peak=torch.stack(seen.value_peak), state_peak=torch.stack(seen.state_peak))


class _Seen:
    """What the recurrences of a model have met, one entry a layer, in the order of their calls."""

    _BLOCK = 64

    def __init__(self, layers: int) -> None:
        self._layers, self._calls = layers, 0
        self._tokens = 0
        self.log_decay: list[Tensor] = [torch.zeros(1)] * layers
        self.value_peak: list[Tensor] = [torch.zeros(1)] * layers
        self.state_peak: list[Tensor] = [torch.zeros(1)] * layers

    def recorder(self, chunked: Callable) -> Callable:
        """A recurrence that computes block by block with `chunked` and looks at the state after each."""

        def record(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **named: Any) -> Any:
            layer = self._calls % self._layers
            self._calls += 1
            tokens = delta_tokens(query, key, value, g, beta, layer)
            mean = tokens.decay[..., 0].log().mean(0)
            weight = len(tokens) / (self._tokens + len(tokens)) if self._tokens else 1.0
            self.log_decay[layer] = torch.lerp(self.log_decay[layer].double().expand_as(mean), mean, weight)
            if layer == self._layers - 1:
                self._tokens += len(tokens)
            self.value_peak[layer] = torch.maximum(self.value_peak[layer], tokens.v.abs().amax((0, 2)))
            state = named.pop("initial_state", None)
            named.pop("output_final_state", None)
            outputs = []
            for begin in range(0, value.shape[1], self._BLOCK):
                part = slice(begin, begin + self._BLOCK)
                out, state = chunked(query[:, part], key[:, part], value[:, part], g=g[:, part], beta=beta[:, part],
                                     initial_state=state, output_final_state=True, **named)
                outputs.append(out)
                self.state_peak[layer] = torch.maximum(self.state_peak[layer], state[0].abs().amax((1, 2)).double())
            return torch.cat(outputs, 1), state

        return record
