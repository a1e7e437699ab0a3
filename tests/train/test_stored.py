"""Training over stored states: the forward values are the integer model's, the gradients those of the float rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from statecell.runtime.recurrent.cache import StateCache
from statecell.runtime.recurrent.calibration import StateCalibration, calibrate_states, plans
from statecell.runtime.recurrent.dispatch import chunked_rule, installed, rules_of
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.support import model_geometry
from statecell.spec.geometry import config
from statecell.train.corpus import Corpus
from statecell.train.finetune import FineTuner
from statecell.train.pretrain import random_model
from statecell.train.stored import StoredCache
from tests.train.small import finetune_recipe, recipe, text

GEOMETRY = config("bench64")


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model(recipe())


@pytest.fixture(scope="module")
def calibration(model: Any) -> StateCalibration:
    return calibrate_states(model, text()[:512].tolist(), name="small", text="none", window=256)


def cache_of(model: Any, kind: type, state_format: str, calibration: StateCalibration | None) -> Any:
    shape, module = model_geometry(model).states, rules_of(model)
    assert shape is not None and module is not None
    states = ModelStates(GEOMETRY)
    recurrent = dict(zip(shape.layers, plans(shape, states, state_format, calibration), strict=True))
    if kind is StateCache:
        return StateCache(states, 3, recurrent)
    return StoredCache(states, 3, recurrent, chunked_rule(module))


@pytest.mark.parametrize("state_format", ["int4", "default", "int4-stochastic"])
def test_forward_values_are_the_integer_models(model: Any, calibration: StateCalibration, state_format: str) -> None:
    ids = text()[:64][None]
    module = rules_of(model)
    assert module is not None
    training = cache_of(model, StoredCache, state_format, calibration)
    stored = cache_of(model, StateCache, state_format, calibration)
    with installed(module):
        for part in (ids[:, :32], ids[:, 32:]):
            learned = model(part, cache=training, use_cache=True).logits
            with torch.no_grad():
                expected = model(part, cache=stored, use_cache=True).logits
            assert torch.allclose(learned, expected, atol=1e-5)  # out + (stored - out) rounds in float32
    for layer, other in zip(training.layers[:2], stored.layers[:2], strict=True):
        mine, theirs = (x.store.engine.state(x.group) for x in (layer, other))
        assert torch.equal(mine.codes, theirs.codes) and torch.equal(mine.scales, theirs.scales)
    with torch.no_grad():
        exact = model(ids, use_cache=False).logits[:, 32:]
    assert not torch.allclose(learned, exact, atol=1e-3)  # so that the comparison above could fail


def test_gradients_are_those_of_the_float_rule(model: Any, calibration: StateCalibration) -> None:
    module = rules_of(model)
    assert module is not None
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 16, 2, 64, generator=generator).requires_grad_() for _ in range(3))
    g, beta = (torch.rand(1, 16, 2, generator=generator).requires_grad_() for _ in range(2))
    layer = cache_of(model, StoredCache, "int4", calibration).layers[0]
    inputs = (query, key, value, g, beta)

    def gradients(out: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(out.square().sum(), inputs))

    out = layer.rule(query, key, value, -g, beta)
    exact = chunked_rule(module)(query, key, value, g=-g, beta=beta, use_qk_l2norm_in_kernel=True)[0]
    weight = 2 * out.detach()
    assert not torch.allclose(out, exact, atol=1e-3)
    for mine, theirs in zip(gradients(out), torch.autograd.grad(exact, inputs, weight), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize(("state_format", "count"), [("int8", 16), ("int8-log8", 16), ("int8-log8", 21)])
def test_the_float_rule_begins_at_the_stored_state(model: Any, state_format: str, count: int) -> None:
    """Also where tokens wait in the log, as they do wherever a frozen one has not been logged."""
    layer = cache_of(model, StoredCache, state_format, None).layers[0]
    assert layer.real_state() is None
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(2, count, 2, 64, generator=generator) for _ in range(3)]
    gates = [torch.rand(2, count, 2, generator=generator) for _ in range(2)]
    layer.rule(*vectors, -gates[0], gates[1])
    module = rules_of(model)
    assert module is not None
    _, state = chunked_rule(module)(*vectors, g=-gates[0], beta=gates[1], output_final_state=True,
                                    use_qk_l2norm_in_kernel=True)
    assert torch.allclose(layer.real_state(), state, atol=0.02 * float(state.abs().max()))


def test_fine_tuning_learns_and_resumes_bit_for_bit(tmp_path: Path, calibration: StateCalibration) -> None:
    def tuner(folder: str, until: int | None = None) -> FineTuner:
        one = FineTuner(finetune_recipe(), Corpus([text()]), tmp_path / folder, random_model(recipe()), calibration)
        one.run(lambda done, total, bits: losses.append(bits), until=until)
        return one

    losses: list[float] = []
    whole = tuner("whole")
    assert losses[-1] < losses[0]
    tuner("parts", 3)
    resumed = tuner("parts")
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
