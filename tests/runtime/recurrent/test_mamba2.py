"""Mamba-2 layers in an engine: the device is the integer model, bit for bit, and the model's own tokens come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, Mamba2Config

from statecell import device
from statecell.device import Device
from statecell.evaluate.equality import TwinEngine
from statecell.model.recurrent import factor, reference
from statecell.model.recurrent.families import Mamba2
from statecell.runtime.attention import attach, detach
from statecell.runtime.device_engine import DeviceEngine
from statecell.runtime.engines import default_config
from statecell.runtime.errors import CacheStateError, NotFiniteError, UnsupportedError
from statecell.runtime.model_engine import ModelEngine
from statecell.runtime.recurrent import device_states, mamba2
from statecell.runtime.recurrent.calibration import StateCalibration, calibrate_states
from statecell.runtime.recurrent.guards import Guards, put
from statecell.runtime.recurrent.layer import StateLayer
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.recurrent.units import first_units, tokens_of, units_of
from statecell.runtime.support import Geometry, StateGeometry, model_geometry
from tests.runtime.exact_engine import ExactEngine
from tests.runtime.recurrent.hybrids import GEOMETRY, HEAD_DIM, exact_engine, hybrid
from tests.runtime.small_models import prompt, small_model

RULE = Mamba2.rule
NEAR = {"int8": 0.1, "default": 0.1, "int4": 0.25}
"""Bounds of the logits' error over the logits, in norms, of the random models, which triple that of a read-out: 32
positions of prefill and decoding.
"""


@pytest.fixture
def model() -> Any:
    return hybrid("mamba2")


def logits_of(model: Any, ids: Tensor) -> Tensor:
    """Those of a prefill of all but the last three, which are decoded one by one."""
    with torch.no_grad():
        first = model(ids[:, :-3], use_cache=True)
        rest = [model(ids[:, at:at + 1], cache=first.cache, use_cache=True).logits for at in range(ids.shape[1] - 3,
                                                                                                   ids.shape[1])]
    return torch.cat([first.logits, *rest], 1)


def twin() -> TwinEngine:
    return TwinEngine(DeviceEngine(Device.open("sim:recur32")), ModelEngine(GEOMETRY))


@pytest.mark.parametrize(("name", "state_format", "batch"), [
    ("mamba2", "default", 1), ("mamba2-narrow", "int4", 2), ("mamba2-wide", "int8", 1), ("bamba", "int4-log8", 1)])
def test_every_step_on_the_device_is_the_integer_models(name: str, state_format: str, batch: int) -> None:
    model, tokens = hybrid(name), []
    for engine in (twin(), ModelEngine(GEOMETRY)):
        attach(model, engine, state_format=state_format)
        tokens.append(model.generate(prompt(6, batch=batch), max_new_tokens=6, do_sample=False))
        detach(model)
        if isinstance(engine, TwinEngine):
            assert engine.states is not None
            assert (engine.states.readouts, engine.states.different, engine.different) == (batch * 2 * 4 * 11, 0, 0)
        engine.close()
    assert torch.equal(*tokens)


def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose read-outs have another last bit."""
    right = device.outputs
    monkeypatch.setattr(device_states, "outputs", lambda answer: right(answer) ^ 1)


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose states decay a little more."""
    right = factor.decayed
    monkeypatch.setattr(factor, "decayed", lambda value, decay: (right(value, decay) - (1 << 14)).clamp(min=1))


@pytest.mark.parametrize("mutant", [late, forgetful])
def test_a_mutant_of_either_side_is_found(model: Any, mutant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    engine = twin()
    attach(model, engine, state_format="int4")
    model(prompt(6))
    assert engine.states is not None and engine.states.different > 0
    detach(model)
    engine.close()


@pytest.mark.parametrize("name", ["mamba2", "mamba2-wide", "bamba"])
@pytest.mark.parametrize("state_format", NEAR)
def test_stored_states_are_near_the_models_own(name: str, state_format: str) -> None:
    model, ids = hybrid(name), prompt(32)
    expected = logits_of(model, ids)
    attach(model, ModelEngine(GEOMETRY), cache_format="int8", state_format=state_format)
    found = logits_of(model, ids)
    assert 0 < (found - expected).norm() < NEAR[state_format] * expected.norm()


MUTANTS: dict[str, Callable] = {
    "x is not multiplied by dt": lambda x, dt, a, b, c: (c, b, x, dt * a, torch.ones_like(dt)),
    "B and C change places": lambda x, dt, a, b, c: (b, c, x * dt[..., None], dt * a, torch.ones_like(dt)),
    "nothing decays": lambda x, dt, a, b, c: (c, b, x * dt[..., None], 0 * dt, torch.ones_like(dt)),
    "heads take the other group's keys": lambda x, dt, a, b, c: (
        c, b.flip(2), x * dt[..., None], dt * a, torch.ones_like(dt)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_mapping_is_far(model: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt(32)
    expected = logits_of(model, ids)
    monkeypatch.setattr(mamba2, "gated_rule", MUTANTS[name])
    attach(model, exact_engine())
    assert (logits_of(model, ids) - expected).norm() > 2 * NEAR["default"] * expected.norm()


def test_the_limits_of_time_steps_are_those_of_sequences(model: Any) -> None:
    """As in transformers, which clamps none of a step of one token."""
    for layer in model.backbone.layers:
        layer.mixer.time_step_limit = (0.3, 0.5)
    ids = prompt(12)
    expected = logits_of(model, ids)
    attach(model, exact_engine())
    assert (logits_of(model, ids) - expected).norm() < 0.01 * expected.norm()


def test_turns_take_the_whole_history_or_what_is_new(model: Any) -> None:
    ids, new = prompt(7), prompt(3, seed=5)
    expected = model.generate(torch.cat([ids, new], 1), max_new_tokens=4, do_sample=False)
    attachment = attach(model, exact_engine())
    for whole in (True, False):
        cache = attachment.new_cache()
        model(ids, cache=cache)
        assert (cache.get_seq_length(), cache.token_counts, cache.sequences) == (7, [7], 1)
        given = torch.cat([ids, new], 1) if whole else new
        out = model.generate(given, cache=cache, attention_mask=torch.ones(1, 10), max_new_tokens=4, do_sample=False)
        assert torch.equal(out[:, -4:], expected[:, -4:]) and cache.get_seq_length() == 13
    with pytest.raises(CacheStateError, match="differs from the cached history at token 0"):
        model.generate(prompt(15, seed=8), cache=cache, max_new_tokens=2)


def test_other_arguments_of_a_pass(model: Any) -> None:
    """Embeddings, the cache's old name, and a padded batch whose mask comes again with each step."""
    ids = prompt(6, batch=2)
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits
        attachment = attach(model, exact_engine())
        cache = attachment.new_cache()
        model(inputs_embeds=model.get_input_embeddings()(ids[:, :4]), attention_mask=mask[:, :4], cache_params=cache)
        found = [model(ids[:, at:at + 1], attention_mask=mask[:, :at + 1], cache=cache).logits for at in (4, 5)]
    assert (torch.cat(found, 1) - expected[:, 4:]).abs().max() < 0.02 * expected.abs().max()
    assert cache.token_counts == [4, 6]
    with pytest.raises(CacheStateError, match="mask has shape"):
        model(ids[:, :1], attention_mask=mask[:, :1], cache=cache)
    hidden = torch.cat([mask, mask[:, :1]], 1)
    hidden[:, 5:] = torch.tensor([[0, 1], [1, 1]])
    with pytest.raises(UnsupportedError, match="cannot be taken out of a recurrent state"):
        model(ids[:, :1], attention_mask=hidden, cache=cache)
    assert cache.token_counts == [4, 6]


def test_refusals(model: Any) -> None:
    with pytest.raises(UnsupportedError, match="recurrent states, which this device cannot keep"):
        attach(model, ExactEngine(HEAD_DIM))
    with pytest.raises(UnsupportedError, match="keys of 96 lanes, the engine's rows have 32 and hold .* at most 64"):
        attach(small_model(config=Mamba2Config(**{**model.config.to_dict(), "state_size": 96})), exact_engine())
    attachment = attach(model, exact_engine())
    cache = model(prompt(5)).cache
    with pytest.raises(UnsupportedError, match="cannot be taken out of a recurrent state"):
        cache.crop(-1)
    with pytest.raises(UnsupportedError, match="beam search reorders the cache"):
        cache.reorder_cache(torch.tensor([0]))
    with pytest.raises(UnsupportedError, match="batch_repeat_interleave would copy"):
        cache.batch_repeat_interleave(2)
    with pytest.raises(UnsupportedError, match="beam search"):
        model.generate(prompt(5), num_beams=2, max_new_tokens=4)
    with pytest.raises(CacheStateError, match="another batch|2 sequences"):
        model(prompt(1, batch=2), cache=cache)
    with pytest.raises(UnsupportedError, match="layer 0 gives its recurrence z"):
        mamba2.of_sequence(lambda: None)(
            *(torch.zeros(1) for _ in range(5)), 8, initial_states=cache.get_recurrent_state(0), z=torch.zeros(1))
    with pytest.raises(UnsupportedError, match="stored in the engine only"):
        cache.get_recurrent_state(0).float()
    with pytest.raises(UnsupportedError, match="DynamicCache"):
        model(prompt(1), cache=DynamicCache(config=model.config))
    cache.reset()
    assert cache.get_seq_length() == 0
    model(prompt(4, batch=2), cache=cache)
    del attachment


def test_geometries() -> None:
    model = hybrid("mamba2")
    states = StateGeometry(rule=RULE, layers=(0, 1), heads=4, dim=32, channels=32)
    assert model_geometry(model) == Geometry(layers=0, kv_heads=0, head_dim=32, states=states)
    assert str(model_geometry(model)) == "2 layers of 4 states of 32 x 32"
    assert model_geometry(hybrid("mamba2-narrow")).head_dim == 32
    wide = model_geometry(hybrid("mamba2-wide"))
    assert wide.head_dim == 64 and default_config(wide.head_dim, states=True) == "hybrid"
    mixed = model_geometry(hybrid("bamba"))
    assert (mixed.layers, mixed.head_dim) == (1, 32) and mixed.states == StateGeometry(
        rule=RULE, layers=(0, 2), heads=4, dim=32, channels=32)


def test_tokens_hold_the_norms_of_keys_and_queries() -> None:
    generator = torch.Generator().manual_seed(2)
    query, key = (torch.randn(2, 5, 2, 8, generator=generator) for _ in range(2))
    value, g = torch.randn(2, 5, 4, 3, generator=generator), -torch.rand(2, 5, 4, generator=generator)
    key[0, 0] = 0
    tokens, gain = tokens_of(RULE, query, key, value, g, torch.ones_like(g), 0)
    o, state = reference.run(tokens, RULE)
    for b in range(2):
        q, k = (x[b].double().repeat_interleave(2, 1) for x in (query, key))
        plain = reference.Sequence(q, k, k, value[b].double(), g[b].double().exp()[..., None], torch.ones(5, 4))
        expected, final = reference.run(plain, RULE)
        heads = slice(4 * b, 4 * b + 4)
        assert torch.allclose((o * gain[..., None])[:, heads], expected) and torch.allclose(state[heads], final)
    norms = tokens.k.norm(dim=-1)
    assert torch.allclose(norms[1:], torch.ones(4, 8, dtype=torch.float64)) and not norms[0, :4].any()


def test_units_have_room_for_sums_that_grow() -> None:
    """A slow head that is told the same again and again, from some tokens on and calibrated, does not saturate."""
    key = functional.normalize(torch.ones(1, 200, 1, HEAD_DIM), dim=-1)
    value, g, beta = torch.ones(1, 200, 1, 16), torch.full((1, 200, 1), -1e-3), torch.ones(1, 200, 1)
    tokens, _ = tokens_of(RULE, key, key, value, g, beta, 0)
    exact, state = reference.run(tokens, RULE)
    peak = state.norm(dim=-1).amax(-1)
    first = reference.Sequence(*(x[:16] for x in vars(tokens).values()))
    for units in (first_units(RULE, first, 1, HEAD_DIM), units_of(RULE, torch.ones(1), peak, HEAD_DIM)):
        found = units.output(torch.round(exact / units.output(torch.ones(1, 1))).clamp(-(1 << 23), (1 << 23) - 1))
        assert torch.allclose(found, exact, rtol=1e-3)
    small = units_of(RULE, torch.ones(1), torch.ones(1), HEAD_DIM)
    limit = small.output(torch.full((1, 1), float(1 << 23)))
    assert exact.max() > limit  # which those of the values alone would


def test_a_calibration_measures_what_the_layers_met(model: Any) -> None:
    ids = prompt(80)[0].tolist()
    found = calibrate_states(model, ids, name="small", text="none")
    met: dict[int, Any] = {}
    original = StateLayer.rule

    def spy(self: StateLayer, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        met[self.index], _ = tokens_of(RULE, query, key, value, g, beta, 0)
        return original(self, query, key, value, g, beta)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateLayer, "rule", spy)
        attach(model, exact_engine(), state_calibration=found)
        model(torch.tensor([ids]))
    for layer, tokens in met.items():
        assert torch.allclose(found.decay[layer].double(), tokens.decay[..., 0].log().mean(0).exp(), rtol=1e-3)
        assert torch.allclose(found.value_peak[layer].double(), tokens.v.abs().amax((0, 2)), rtol=1e-2)
        ends = [reference.run(reference.Sequence(*(x[:n] for x in vars(tokens).values())), RULE)[1] for n in (64, 80)]
        norms = torch.stack(ends).norm(dim=-1).amax((0, -1))
        assert torch.allclose(found.state_peak[layer].double(), norms, rtol=1e-2)
    detach(model)
    wrong = StateCalibration(model="other", text="none", tokens=1, decay=torch.full((2, 4), 0.9),
                             value_peak=torch.full((2, 4), 1e-6), state_peak=torch.full((2, 4), 1e-6))
    few, errors = prompt(32), []
    expected = logits_of(model, few)
    for calibration in (found, wrong):
        attach(model, ModelEngine(GEOMETRY), state_format="int8", state_calibration=calibration)
        errors.append(float((logits_of(model, few) - expected).norm() / expected.norm()))
        detach(model)
    assert errors[0] < NEAR["int8"] < errors[1]  # the other one's full scale is far below the values


def test_gates_between_are_those_of_the_stored_states(model: Any) -> None:
    """Gates of 0 to 1 act on the model's own states as on stored ones."""
    guards = Guards.new(model)
    with torch.no_grad():
        guards.freeze.bias.fill_(0.5)
        guards.freeze.weight.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.3)
    ids = prompt(16)
    with torch.no_grad():
        plain = logits_of(model, ids)
        put(model, guards)
        expected = logits_of(model, ids)
        attach(model, exact_engine())
        found = logits_of(model, ids)
    assert (found - expected).norm() < 0.01 * expected.norm() < (plain - expected).norm()


def test_a_step_that_is_not_finite_is_refused_and_the_state_stays(model: Any) -> None:
    engine = ModelEngine(GEOMETRY)
    attach(model, engine, state_format="int4")
    cache = model(prompt(5)).cache
    assert isinstance(engine.states, ModelStates)
    before = engine.states.state(cache.layers[0].group).codes.clone()
    kept = model.backbone.layers[0].mixer.dt_bias.data
    model.backbone.layers[0].mixer.dt_bias.data = kept * float("nan")
    with pytest.raises(NotFiniteError, match="the recurrent layer 0 got vectors that cannot be stored: v holds NaN"):
        model(prompt(1), cache=cache)
    assert torch.equal(engine.states.state(cache.layers[0].group).codes, before)
    model.backbone.layers[0].mixer.dt_bias.data = kept
    model(prompt(1), cache=cache)
