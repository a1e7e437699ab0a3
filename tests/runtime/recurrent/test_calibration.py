"""What a calibration of states measures, and which storage it chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from statecell.model.recurrent import reference
from statecell.model.recurrent.mode import Rule, Storage
from statecell.model.recurrent.named import DEFAULT_BITS, default_modes
from statecell.runtime.errors import CalibrationError, UnsupportedError
from statecell.runtime.recurrent import dispatch
from statecell.runtime.recurrent.calibration import StateCalibration, calibrate_states, plans
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.recurrent.units import delta_tokens
from statecell.runtime.support import model_geometry
from tests.runtime.recurrent.hybrids import GEOMETRY, hybrid
from tests.runtime.small_models import prompt, small_model


@pytest.fixture(scope="module")
def model() -> Any:
    return hybrid()


def test_decays_and_peaks_are_those_of_the_tokens(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt(150)[0].tolist()
    found = calibrate_states(model, ids, name="small", text="none", window=100)
    calls: list[Any] = []
    module = dispatch.rules_of(model)
    assert module is not None
    name, _ = dispatch.functions(module)
    original = getattr(module, name)

    def spy(query: Any, key: Any, value: Any, g: Any, beta: Any, **named: Any) -> Any:
        calls.append(delta_tokens(query, key, value, g, beta, 0))
        return original(query, key, value, g=g, beta=beta, **named)

    monkeypatch.setattr(module, name, spy)
    with torch.no_grad():
        for part in (ids[:100], ids[100:]):
            model(torch.tensor([part]), use_cache=False)
    for layer in range(2):
        windows = calls[layer::2]
        decay = torch.cat([tokens.decay[..., 0] for tokens in windows]).log().mean(0).exp()
        assert torch.allclose(found.decay[layer].double(), decay, rtol=1e-5)
        peak = torch.cat([tokens.v for tokens in windows]).abs().amax((0, 2))
        assert torch.allclose(found.value_peak[layer].double(), peak)
        ends = [reference.run(tokens, Rule(delta=True))[1].abs().amax((1, 2)) for tokens in windows]
        assert bool((found.state_peak[layer] >= torch.stack(ends).amax(0) * 0.999).all())


def test_the_slowest_heads_take_two_planes_as_far_as_the_bits_go() -> None:
    decays = [0.5, 0.9999, 0.99, 0.3, 0.999, 0.9]
    modes = default_modes(decays, GEOMETRY)
    assert [mode.storage for mode in modes] == [Storage.INT4, Storage.INT8] + [Storage.INT4] * 4
    modes = default_modes(decays * 3, GEOMETRY)
    assert sum(mode.planes == 2 for mode in modes) == 5  # 5 of 18, the 3 of 0.9999 and 2 of 0.999
    assert all(mode.planes == 2 for mode in modes[1::6])
    assert sum(mode.bits_per_element(GEOMETRY) for mode in modes) / 18 <= DEFAULT_BITS
    with pytest.raises(ValueError, match=r"mean decay is 1\.5"):
        default_modes([1.5], GEOMETRY)


def test_files_and_their_refusals(model: Any, tmp_path: Path) -> None:
    calibration = calibrate_states(model, prompt(32)[0].tolist(), name="small", text="none")
    path = tmp_path / "states.safetensors"
    calibration.save(path)
    again = StateCalibration.load(path)
    assert (again.model, again.text, again.tokens) == ("small", "none", 32)
    assert torch.equal(again.decay, calibration.decay.float())
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CalibrationError, match="cannot be read"):
        StateCalibration.load(path)
    StateCalibration(model="small", text="none", tokens=1, decay=calibration.decay + 2,
                     value_peak=calibration.value_peak, state_peak=calibration.state_peak).save(path)
    with pytest.raises(CalibrationError, match="damaged"):
        StateCalibration.load(path)
    with pytest.raises(CalibrationError, match="no tokens"):
        calibrate_states(model, [], name="small", text="none")
    with pytest.raises(UnsupportedError, match="no Gated DeltaNet or Mamba-2 layers"):
        calibrate_states(small_model(), [1, 2], name="llama", text="none")
    shape = model_geometry(model).states
    assert shape is not None
    other = StateCalibration(model="other", text="none", tokens=1, decay=torch.full((1, 1), 0.5),
                             value_peak=torch.ones(1, 1), state_peak=torch.ones(1, 1))
    with pytest.raises(CalibrationError, match=r"for \(1, 1\) layers and heads, the model has \(2, 4\)"):
        plans(shape, ModelStates(GEOMETRY), "default", other)


def test_without_a_calibration_the_default_is_two_planes(model: Any) -> None:
    shape = model_geometry(model).states
    assert shape is not None
    chosen = plans(shape, ModelStates(GEOMETRY), "default", None)
    assert all(mode.planes == 2 for plan in chosen for mode in plan.modes)
    assert all(plan.units is None for plan in chosen)
