"""Measured once per model and kept: each recurrent head's decay, and the largest values and states it meets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statecell.model.recurrent.host import Units
from statecell.model.recurrent.mode import Mode, Rule, Scales, Storage
from statecell.model.recurrent.named import DEFAULT, FORMATS, SLOW, default_modes
from statecell.runtime.arrayfile import load_arrays, save_arrays
from statecell.runtime.calibration import beside_weights, fingerprint
from statecell.runtime.errors import CalibrationError, UnsupportedError
from statecell.runtime.recurrent import gating, mamba2
from statecell.runtime.recurrent.dispatch import functions, rules_of
from statecell.runtime.recurrent.engine import StateEngine, StateShape, halves_of
from statecell.runtime.recurrent.guards import FILE as GUARDS_FILE
from statecell.runtime.recurrent.guards import Guards
from statecell.runtime.recurrent.layer import LayerPlan
from statecell.runtime.recurrent.units import tokens_of, units_of
from statecell.runtime.support import StateGeometry, model_geometry
from statecell.store.paths import calibrations_folder
from statecell.store.quiet import quiet_transformers

_FORMAT = "statecell state calibration 1"
_ARRAYS = ("decay", "value_peak", "state_peak")
FILE = "states.safetensors"
"""Name of a calibration beside the weights of a model."""
_BLOCK = 64
"""Tokens after which a calibration looks at a state."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StateCalibration:
    """Of every recurrent layer and value head, float32 [layers, H]: ``decay`` (geometric mean of g), ``value_peak`` and
    ``state_peak`` (largest magnitudes that `units.units_of` takes), on ``tokens`` tokens of ``text``.
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
          guards: Guards | None = None, recalibrate: int | None = None) -> list[LayerPlan]:
    """A plan for each recurrent layer of a model: ``state_format`` is `default` or a name of `named.FORMATS`, and heads
    are recalibrated every ``recalibrate`` tokens.

    Without a calibration the default stores every head in two planes, and units come from the first tokens. Predicted
    scales and the strength of the error feedback are those of ``guards``. Raises UnsupportedError for another format,
    one that the engine does not keep, predicted scales without guards, or a recalibration every 0 tokens,
    CalibrationError for a calibration of another shape.
    """
    if recalibrate is not None and recalibrate < 1:
        raise UnsupportedError(f"Recalibration every {recalibrate} tokens was asked for: give at least 1, or None.")
    if state_format not in (DEFAULT, *FORMATS):
        raise UnsupportedError(f"The state format '{state_format}' is not known: use one of {DEFAULT}, "
                               f"{', '.join(FORMATS)}.")
    layers, heads = len(states.layers), states.heads
    shape = StateShape(rule=states.rule, channels=states.channels,
                       halves=halves_of(states.dim, engine.geometry.head_dim))
    mode = FORMATS[SLOW if state_format == DEFAULT else state_format]
    if mode.scales == Scales.SUPPLIED and guards is None:
        raise UnsupportedError(f"The state format '{state_format}' needs a trained scale predictor, {GUARDS_FILE} "
                               "beside the weights, and there is none: use int4, or `statecell train`.")
    if calibration is None:
        engine.check_modes([mode], shape)
        return [_plan(states.rule, [mode] * heads, None, guards, i, recalibrate) for i in range(layers)]
    if tuple(calibration.decay.shape) != (layers, heads):
        raise CalibrationError(f"the calibration of {calibration.model} is for {tuple(calibration.decay.shape)} layers "
                               f"and heads, the model has {(layers, heads)}; calibrate this model")
    modes = default_modes(calibration.decay.flatten().tolist(), engine.geometry) if state_format == DEFAULT else \
        [FORMATS[state_format]] * (layers * heads)
    engine.check_modes(modes, shape)
    return [_plan(states.rule, modes[i * heads:(i + 1) * heads],
                  units_of(states.rule, calibration.value_peak[i], calibration.state_peak[i], states.dim), guards, i,
                  recalibrate)
            for i in range(layers)]


def _plan(rule: Rule, modes: Sequence[Mode], units: Units | None, guards: Guards | None, layer: int,
          recalibrate: int | None) -> LayerPlan:
    """The plan of one layer, with the guards that its modes use."""
    if guards is None:
        return LayerPlan(rule=rule, modes=modes, units=units, recalibrate=recalibrate)
    supplied = any(mode.scales == Scales.SUPPLIED for mode in modes)
    blind = any(mode.storage == Storage.RESIDUAL for mode in modes)
    return LayerPlan(rule=rule, modes=modes, units=units, predictor=guards.predictor(layer) if supplied else None,
                     feedback=guards.sixteenths(layer) if blind else None, recalibrate=recalibrate)


def calibrate_states(model: Any, token_ids: Sequence[int], *, name: str, text: str, window: int = 4096,
                     progress: Callable[[int, int], None] | None = None) -> StateCalibration:
    """Measure a calibration: the float model reads ``token_ids`` in fresh windows; ``progress`` counts tokens.

    A state's peak is taken from the states at the ends of blocks of at most 64 tokens. Raises CalibrationError without
    tokens, UnsupportedError for a model without recurrent layers of a kind that `attach` knows, NotFiniteError for NaN
    or infinity.
    """
    module, states = rules_of(model), model_geometry(model).states
    if module is None or states is None:
        raise UnsupportedError(f"a model of type {model.config.model_type} has no Gated DeltaNet or Mamba-2 layers, so "
                               "there are no states to calibrate")
    if not len(token_ids):
        raise CalibrationError("the calibration text has no tokens, some thousands were expected; give a longer text")
    seen = _Seen(len(states.layers), states.rule)
    name_of, _ = functions(module)  # a pass without a cache uses that of a sequence only
    original = getattr(module, name_of)
    setattr(module, name_of, (_delta if states.rule.delta else _mamba2)(original, seen))
    try:
        for begin in range(0, len(token_ids), window):
            ids = torch.tensor([list(token_ids[begin:begin + window])])
            # open gates: the recorder computes in blocks of its own, and the text is none that would be frozen
            with torch.inference_mode(), quiet_transformers(), gating.all_open():
                model(ids, use_cache=False)
            if progress is not None:
                progress(min(begin + window, len(token_ids)), len(token_ids))
    finally:
        setattr(module, name_of, original)
    return StateCalibration(
        model=name, text=text, tokens=len(token_ids),
        decay=torch.stack([x.exp() for x in seen.log_decay]),
        value_peak=torch.stack(seen.value_peak), state_peak=torch.stack(seen.state_peak))


class _Seen:
    """What the recurrences of a model, all by one rule, have met, one entry a layer, in the order of their calls."""

    def __init__(self, layers: int, rule: Rule) -> None:
        self._layers, self._rule = layers, rule
        self._calls = self._tokens = 0
        self.log_decay: list[Tensor] = [torch.zeros(1)] * layers
        self.value_peak: list[Tensor] = [torch.zeros(1)] * layers
        self.state_peak: list[Tensor] = [torch.zeros(1)] * layers

    def tokens(self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> None:
        """The next layer's tokens, of one sequence."""
        layer = self._calls % self._layers
        self._calls += 1
        tokens, _ = tokens_of(self._rule, query, key, value, g, beta, layer)
        mean = tokens.decay[..., 0].log().mean(0)
        weight = len(tokens) / (self._tokens + len(tokens)) if self._tokens else 1.0
        self.log_decay[layer] = torch.lerp(self.log_decay[layer].double().expand_as(mean), mean, weight)
        if layer == self._layers - 1:
            self._tokens += len(tokens)
        self.value_peak[layer] = torch.maximum(self.value_peak[layer], tokens.v.abs().amax((0, 2)))

    def states(self, state: Tensor) -> None:
        """That layer's states [H, ..., ...] after some of its tokens; Mamba-2's have rows of keys."""
        layer = (self._calls - 1) % self._layers
        peak = state.abs().amax((1, 2)) if self._rule.delta else state.norm(dim=-1).amax(-1)
        self.state_peak[layer] = torch.maximum(self.state_peak[layer], peak.double())


def _blocks(count: int) -> list[slice]:
    return [slice(begin, begin + _BLOCK) for begin in range(0, count, _BLOCK)]


def _delta(chunked: Callable, seen: _Seen) -> Callable:
    """A gated delta rule that computes block by block with `chunked` and looks at the state after each."""

    def record(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **named: Any) -> Any:
        seen.tokens(query, key, value, g, beta)
        named |= {"initial_state": None, "output_final_state": True}
        outputs = []
        for part in _blocks(value.shape[1]):
            out, named["initial_state"] = chunked(
                query[:, part], key[:, part], value[:, part], g=g[:, part], beta=beta[:, part], **named)
            outputs.append(out)
            seen.states(named["initial_state"][0])
        return torch.cat(outputs, 1), None

    return record


def _mamba2(chunked: Callable, seen: _Seen) -> Callable:
    """The same of Mamba-2's scan."""

    def record(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk_size: int, **named: Any) -> Any:
        seen.tokens(*mamba2.gated_rule(x, mamba2.time_steps(dt, **named), a, b, c))
        named |= {"initial_states": None, "return_final_states": True}
        outputs = []
        for part in _blocks(x.shape[1]):
            out, named["initial_states"] = chunked(
                x[:, part], dt[:, part], a, b[:, part], c[:, part], _BLOCK, **named)
            outputs.append(out)
            seen.states(named["initial_states"][0])
        return torch.cat(outputs, 1)

    return record
