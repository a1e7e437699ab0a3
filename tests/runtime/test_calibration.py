"""Calibration and the conversion to integers."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from statecell.runtime import calibration as calibrations
from statecell.runtime.attention import attach
from statecell.runtime.calibration import Calibration, calibrate, fingerprint
from statecell.runtime.errors import CalibrationError, NotFiniteError
from statecell.runtime.quantise import (
    LOG2_E,
    LayerScales,
    attended_to_float,
    log2_score,
    queries_to_int16,
    rows_to_int16,
)
from tests.runtime.exact_engine import ExactEngine
from tests.runtime.small_models import HEAD_DIM, prompt, small_model

RNG = np.random.default_rng(5)


def test_calibrate_measures_means_and_range() -> None:
    model = small_model("gemma3-mixed")
    ids = prompt(50)[0].tolist()
    seen: list[tuple[int, int]] = []
    result = calibrate(model, ids, name="small", text="random", window=20, progress=lambda *p: seen.append(p))
    assert seen == [(20, 50), (40, 50), (50, 50)]
    keys = []
    for begin in (0, 20, 40):
        cache = DynamicCache()
        with torch.no_grad():
            model(torch.tensor([ids[begin : begin + 20]]), cache=cache)
        layers: list[Any] = cache.layers
        keys.append(torch.stack([layer.keys[0] for layer in layers]).numpy())
    k = np.concatenate(keys, axis=2)  # [layers, heads, tokens, d]
    assert result.k_mean.shape == (3, 2, HEAD_DIM)
    np.testing.assert_allclose(result.k_mean, k.mean(axis=2), rtol=1e-3, atol=1e-3)
    assert np.array_equal(result.k_mean, result.k_mean.astype(np.float16).astype(np.float32))
    largest = np.abs(k - result.k_mean[:, :, None]).max(axis=(2, 3))
    np.testing.assert_allclose(result.k_lsb * 32767, 1.5 * largest, rtol=1e-5)


def test_save_and_load_are_exact_and_small(tmp_path: Path) -> None:
    made = calibrate(small_model(), prompt(30)[0].tolist(), name="small", text="random")
    path = tmp_path / "c.safetensors"
    made.save(path)
    read = Calibration.load(path)
    for name in ("k_mean", "v_mean", "k_lsb", "v_lsb"):
        array = getattr(read, name)
        assert array.dtype == np.float32
        assert np.array_equal(array, getattr(made, name))
    assert (read.model, read.text, read.tokens, read.fingerprint) == ("small", "random", 30, made.fingerprint)
    assert path.stat().st_size < 2 * 2 * made.k_mean.size + 1024


def test_files_that_are_no_calibration(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    with pytest.raises(CalibrationError, match="cannot be read"):
        Calibration.load(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(CalibrationError, match="cannot be read"):
        Calibration.load(path)
    made = calibrate(small_model(), prompt(30)[0].tolist(), name="small", text="random")
    made.save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CalibrationError, match="cannot be read"):
        Calibration.load(path)
    made.k_lsb[1, 1] = 0
    made.save(path)
    with pytest.raises(CalibrationError, match="damaged"):
        Calibration.load(path)


def test_empty_text_is_refused() -> None:
    with pytest.raises(CalibrationError, match="no tokens"):
        calibrate(small_model(), [], name="small", text="empty")


def test_fingerprint_follows_the_weights_not_their_type() -> None:
    first = fingerprint(small_model())
    assert first == fingerprint(small_model().to(torch.bfloat16))
    assert first != fingerprint(small_model("qwen3"))
    other = small_model()
    with torch.no_grad():
        other.model.norm.weight[0] += 0.5
    assert first != fingerprint(other)


def test_calibrated_generation_is_that_of_sdpa(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = small_model("qwen2")  # it has biases, so the means are not small
    made = calibrate(model, prompt(60)[0].tolist(), name="small", text="random")
    assert np.abs(made.k_mean).max() > 0.1
    expected = model.generate(prompt(8), max_new_tokens=12, do_sample=False)
    monkeypatch.setattr(calibrations, "builtin", lambda _: made)
    attachment = attach(model, ExactEngine(HEAD_DIM))
    assert attachment.calibration is made
    assert torch.equal(model.generate(prompt(8), max_new_tokens=12, do_sample=False), expected)
    assert attachment.tally.elements == 3 * 2 * 2 * HEAD_DIM * 19
    assert attachment.tally.saturated == 0


def scales(k_lsb: float = 1e-3, v_lsb: float = 2e-3) -> LayerScales:
    mean = RNG.normal(size=(2, 1, 8)).astype(np.float32)
    lsb = np.ones((2, 1, 1), np.float32)
    return LayerScales(k_mean=mean, v_mean=-mean, k_lsb=lsb * np.float32(k_lsb), v_lsb=lsb * np.float32(v_lsb))


def test_rows_round_and_saturate() -> None:
    s = scales()
    k = s.k_mean + RNG.normal(size=(1, 2, 5, 8)).astype(np.float32)
    k[0, 0, 0, :3] = s.k_mean[0, 0, :3] + np.array([40, -40, 32.7674], np.float32)
    ints, saturated = rows_to_int16(k, s.k_mean, s.k_lsb, "key", 0)
    assert saturated == 2
    assert ints[0, 0, 0, :3].tolist() == [32767, -32767, 32767]
    error = np.abs(ints.astype(np.float64) * s.k_lsb + s.k_mean - k)
    assert error[0, 1].max() <= 0.5001e-3


@pytest.mark.parametrize("size", [1e-20, 1e-3, 1.0, 777.0, 1e12])
def test_queries_fill_the_range_and_scores_are_right(size: float) -> None:
    q = (size * RNG.normal(size=(2, 2, 6, 8))).astype(np.float32)
    q[1, 1] = 0
    k_lsb = np.array([1e-3, 7e-2], np.float32)[:, None, None]
    ints, shift = queries_to_int16(q, 0.25, k_lsb, 0)
    largest = np.abs(ints.astype(np.int32)).max(axis=(2, 3))
    assert ((largest > 16383) & (largest <= 32767) | (largest == 0)).all()
    assert largest[1, 1] == 0
    k_int = RNG.integers(-32767, 32768, size=8)
    for b, h in ((0, 0), (0, 1), (1, 0)):
        exact = (q[b, h].astype(np.float64) @ (k_int * float(k_lsb[h, 0, 0]))) * 0.25 * LOG2_E
        score = log2_score((ints[b, h].astype(np.int64) @ k_int).astype(np.float64), int(shift[b, h]))
        assert np.abs(score - exact).max() <= 1e-3 * np.abs(exact).max()


def test_query_just_below_a_power_of_two_does_not_overflow() -> None:
    q = np.full((1, 1, 1, 8), np.nextafter(np.float32(1), np.float32(0)), np.float32)
    ints, shift = queries_to_int16(q, 1 / LOG2_E, np.ones((1, 1, 1), np.float32), 0)
    assert ints.min() == ints.max() == 16384
    assert shift == 14


def test_outputs_come_back_with_mean_and_scale() -> None:
    s = scales()
    out = RNG.integers(-32767, 32768, size=(1, 2, 3, 8)).astype(np.int16)
    exponent = np.array([[[0, -3, 2], [1, -15, 0]]])
    value = attended_to_float(out, exponent, s)
    np.testing.assert_allclose(value, out * 2.0 ** exponent[..., None] * 2e-3 + s.v_mean, rtol=1e-5, atol=1e-6)


def test_first_rows_give_neutral_scales_with_headroom() -> None:
    k = RNG.normal(size=(1, 2, 4, 8)).astype(np.float32)
    v = np.zeros_like(k)
    neutral = LayerScales.from_first_rows(k, v, 0)
    assert not neutral.k_mean.any()
    np.testing.assert_allclose(neutral.k_lsb[:, 0, 0] * 32767, 8 * np.abs(k).max(axis=(0, 2, 3)), rtol=1e-6)
    assert (neutral.v_lsb > 0).all()
    k[0, 1, 2, 3] = np.nan
    with pytest.raises(NotFiniteError, match="key vectors of layer 4"):
        LayerScales.from_first_rows(k, v, 4)


@pytest.mark.parametrize(("name", "shape"), [("smollm2-135m", (30, 3, 64)), ("glassllm", (4, 2, 32))])
def test_calibrations_that_are_shipped(name: str, shape: tuple[int, int, int]) -> None:
    folder = resources.files("statecell.runtime") / "calibrations"
    with resources.as_file(folder / f"{name}.safetensors") as path:
        calibration = Calibration.load(path)
        assert path.stat().st_size < 32_768
    assert calibration.k_mean.shape == calibration.v_mean.shape == shape
    assert (calibration.model, calibration.text, calibration.tokens) == (name, "emma", 8192)
    assert len(calibration.fingerprint) == 64
