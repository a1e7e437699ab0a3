"""Calibration: per layer and KV head, the key and value means that the host removes and the LSBs of the integers.

Measured once per model on a text and saved as one safetensors file. A model without one runs with zero means and with
LSBs taken from its first prompt; its 4-bit rows are then less accurate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statecell.runtime.arrayfile import load_arrays, save_arrays
from statecell.runtime.errors import CalibrationError
from statecell.runtime.support import Geometry, model_geometry
from statecell.store.paths import calibrations_folder
from statecell.store.quiet import quiet_transformers

# Largest magnitude seen x 1.5 is the int16 range. 0.6 of 16 bits buys room for unseen text; a 4- or 8-bit code, chosen
# from the integer afterwards, cannot tell the difference, while a saturated key would be an error of unbounded size.
HEADROOM = 1.5
_FORMAT = "statecell-calibration-1"
FILE = "calibration.safetensors"
"""Name of a calibration beside the weights of a model."""
_ARRAYS = ("k_mean", "v_mean", "k_lsb", "v_lsb")
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Means [layers, kv_heads, d] and LSBs [layers, kv_heads], float32, of one model.

    `fingerprint` identifies the model's weights, `model` and `text` are names for people, `tokens` is the length of the
    text that was measured.
    """

    model: str
    fingerprint: str
    text: str
    tokens: int
    k_mean: Floats
    v_mean: Floats
    k_lsb: Floats
    v_lsb: Floats

    @property
    def geometry(self) -> Geometry:
        """Layers, KV heads and head_dim that the arrays are for."""
        layers, kv_heads, head_dim = self.k_mean.shape
        return Geometry(layers=layers, kv_heads=kv_heads, head_dim=head_dim)

    def check(self, geometry: Geometry) -> None:
        """Raise CalibrationError where the calibration is for a model of another shape."""
        if self.geometry != replace(geometry, states=None):
            raise CalibrationError(
                f"the calibration of {self.model} is for {self.geometry}, the model has {geometry}; "
                "calibrate this model, or leave the calibration out"
            )

    def save(self, path: Path) -> None:
        """Write a safetensors file; means that float16 holds exactly, as those of `calibrate`, take two bytes each."""
        arrays: dict[str, Tensor] = {}
        for name in _ARRAYS:
            array: Floats = getattr(self, name)
            half = array.astype(np.float16)
            exact = name.endswith("_mean") and np.array_equal(half.astype(np.float32), array)
            arrays[name] = torch.from_numpy(half if exact else array)
        facts = {"model": self.model, "fingerprint": self.fingerprint, "text": self.text, "tokens": self.tokens}
        save_arrays(path, _FORMAT, arrays, facts)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file written by `save`. Raises CalibrationError where it is missing, damaged or of another kind."""
        arrays, facts = load_arrays(path, _FORMAT, _ARRAYS)
        calibration = cls(**facts, **{name: array.numpy() for name, array in arrays.items()})
        calibration._check_arrays(path)
        return calibration

    def _check_arrays(self, path: Path) -> None:
        shape = self.k_mean.shape
        fits = len(shape) == 3 and self.v_mean.shape == shape and self.k_lsb.shape == self.v_lsb.shape == shape[:2]
        finite = all(np.isfinite(getattr(self, name)).all() for name in _ARRAYS)
        if not (fits and finite and (self.k_lsb > 0).all() and (self.v_lsb > 0).all()):
            raise CalibrationError(
                f"{path} holds a damaged calibration (means of one shape, finite numbers and positive LSBs were "
                "expected); make a new one"
            )


def fingerprint(model: Any) -> str:
    """Identity of a model: its geometry and its normalisation weights as bfloat16.

    The same whether the weights are held in float32 or bfloat16, and cheap: no large tensor is read. A fine-tuned
    model that leaves the normalisation alone shares it, and its calibration.
    """
    digest = hashlib.sha256(str(model_geometry(model)).encode())
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and ("norm" in name or "ln_" in name):
            digest.update(parameter.detach().to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def own_path(wanted: str) -> Path:
    """Where the user's own calibration of a model with this fingerprint lies."""
    return calibrations_folder() / f"{wanted[:32]}.safetensors"


def known(model: Any) -> Calibration | None:
    """The calibration for a model: the user's own (`statecell calibrate`), else the one beside its weights, else that
    shipped with statecell, else None.

    Raises CalibrationError if one of the first two cannot be read.
    """
    wanted = fingerprint(model)
    for path in (own_path(wanted), *beside_weights(model, FILE)):
        if path.is_file():
            return Calibration.load(path)
    return builtin(wanted)


def beside_weights(model: Any, name: str) -> list[Path]:
    """The path of a file in the folder that the model was loaded from; none where it was not."""
    return [Path(model.name_or_path) / name] if model.name_or_path else []


def builtin(wanted: str) -> Calibration | None:
    """The calibration shipped with statecell for models of this fingerprint, or None."""
    folder = resources.files("statecell.runtime") / "calibrations"
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".safetensors"):
            with resources.as_file(entry) as path:
                calibration = Calibration.load(path)
            if calibration.fingerprint == wanted:
                return calibration
    return None


def calibrate(
    model: Any,
    token_ids: Sequence[int],
    *,
    name: str,
    text: str,
    window: int = 1024,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Measure a calibration on a text.

    The float model reads `token_ids` in windows of `window` tokens; `progress(done, total)` is called after each. Means
    are over all positions of the keys after position encoding and of the values, rounded to float16; an LSB is
    HEADROOM * (largest magnitude after mean removal) / 32767. `name` and `text` name the model and the text.

    Raises CalibrationError where no token is given or the model yields NaN or infinity, UnsupportedError where the
    model is one that `attach` refuses.
    """
    from transformers.cache_utils import DynamicLayer

    from statecell.runtime.half import host_cache

    geometry = model_geometry(model)
    if not len(token_ids):
        raise CalibrationError("the calibration text has no tokens, some thousands were expected; give a longer text")
    total = len(token_ids)
    shape = (geometry.layers, geometry.kv_heads, geometry.head_dim)
    sums = np.zeros((2, *shape))
    lows = np.full((2, *shape), np.inf, np.float32)
    highs = np.full((2, *shape), -np.inf, np.float32)
    for begin in range(0, total, window):
        ids = torch.tensor([list(token_ids[begin : begin + window])], device=model.device)
        cache = host_cache(model.config.get_text_config(decoder=True))
        with torch.inference_mode(), quiet_transformers():
            model(ids, cache=cache, use_cache=True)
        layers: list[Any] = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
        for index, layer in enumerate(layers):
            for which, states in enumerate((layer.keys, layer.values)):
                rows = states[0].to("cpu", torch.float32).numpy()  # [kv_heads, tokens, d]
                sums[which, index] += rows.sum(axis=1, dtype=np.float64)
                lows[which, index] = np.minimum(lows[which, index], rows.min(axis=1))
                highs[which, index] = np.maximum(highs[which, index], rows.max(axis=1))
        if progress is not None:
            progress(min(begin + window, total), total)
    means = (sums / total).astype(np.float16).astype(np.float32)
    # Per channel the extremes after mean removal are the extremes before it, moved by the mean: one pass is enough.
    largest = np.maximum(highs - means, means - lows).max(axis=-1)
    if not np.isfinite(largest).all():
        raise CalibrationError(
            f"model {name} yields NaN or infinity on the calibration text; check its weights and number format"
        )
    lsbs = np.maximum(HEADROOM * largest / 32767, 2.0**-40).astype(np.float32)
    return Calibration(
        model=name,
        fingerprint=fingerprint(model),
        text=text,
        tokens=total,
        k_mean=means[0],
        v_mean=means[1],
        k_lsb=lsbs[0],
        v_lsb=lsbs[1],
    )
