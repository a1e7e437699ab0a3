"""Recurrent layers in an engine: exact states give transformers' own tokens, failed passes leave no trace."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from statecell.model.recurrent import integer
from statecell.model.recurrent.families import GatedDeltaNet
from statecell.model.recurrent.named import MODES
from statecell.model.recurrent.state import new_state
from statecell.runtime.attention import Attachment, attach, attachment_of, detach
from statecell.runtime.errors import CacheStateError, UnsupportedError
from statecell.runtime.model_engine import ModelEngine
from statecell.runtime.recurrent.calibration import calibrate_states
from statecell.runtime.recurrent.layer import Remembered, StateHandle, StateLayer
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.recurrent.units import delta_tokens, delta_units, integers
from tests.runtime.exact_engine import ExactEngine
from tests.runtime.recurrent.hybrids import (
    CONFIGS,
    GEOMETRY,
    HEAD_DIM,
    LINEAR,
    ExactStates,
    conversation,
    exact_engine,
    hybrid,
)
from tests.runtime.small_models import PAD, prompt, small_model

NEW = 12


@pytest.fixture
def model() -> Iterator[Any]:
    model = hybrid()
    yield model
    if attachment_of(model) is not None:
        detach(model)


def greedy(model: Any, ids: torch.Tensor, **options: Any) -> Any:
    return model.generate(ids, max_new_tokens=NEW, do_sample=False, **options)


def exact_of(attachment: Attachment) -> ExactStates:
    states = attachment.engine.states
    assert isinstance(states, ExactStates)
    return states


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_greedy_tokens_and_logits_are_those_of_transformers(name: str) -> None:
    model = hybrid(name)
    ids = prompt(9)
    expected = greedy(model, ids)
    with torch.no_grad():
        logits = model(expected).logits
    # without a delta rule, units from the first tokens have room for values that are far larger, and are as coarse
    known = None if name.startswith("qwen") else calibrate_states(model, prompt(99)[0].tolist(), name=name, text="none")
    attachment = attach(model, exact_engine(), state_calibration=known)
    assert torch.equal(greedy(model, ids), expected)
    with torch.no_grad():
        error = (model(expected).logits - logits).abs().max()
    assert 0 < error < 0.02 * logits.abs().max()
    assert exact_of(attachment).steps == 2 * (9 + NEW - 1) + 2 * (9 + NEW)
    detach(model)
    assert torch.equal(greedy(model, ids), expected)


@pytest.mark.parametrize("name", ["qwen3_5", "mamba2"])
def test_padded_batch_chunked_prefill_and_a_second_turn(name: str) -> None:
    model = hybrid(name)
    ids = prompt(8, batch=2)
    ids[0, :3] = PAD
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    expected = greedy(model, ids, attention_mask=mask)
    attachment = attach(model, exact_engine())
    assert torch.equal(greedy(model, ids, attention_mask=mask), expected)
    assert torch.equal(greedy(model, ids, attention_mask=mask, prefill_chunk_size=3), expected)
    cache = attachment.new_cache()
    first = model.generate(ids, attention_mask=mask, cache=cache, max_new_tokens=5, do_sample=False)
    longer = torch.cat([mask, torch.ones(2, 5, dtype=mask.dtype)], 1)
    second = model.generate(first, attention_mask=longer, cache=cache, max_new_tokens=NEW - 5, do_sample=False)
    assert torch.equal(second, expected)


def test_the_state_is_not_on_the_host(model: Any) -> None:
    attachment = attach(model, exact_engine())
    cache = model(prompt(5)).cache
    for index in LINEAR:
        layer = cache.layers[index]
        assert isinstance(layer, StateLayer) and layer.recurrent_states[0] is None
        handle = cache.get_recurrent_state(index)
        with pytest.raises(UnsupportedError, match="stored in the engine only"):
            handle.float()
        with pytest.raises(UnsupportedError, match="stored in the engine only"):
            torch.exp(handle)
        with pytest.raises(UnsupportedError, match="computed its recurrent state on the host"):
            cache.update_recurrent_state(torch.zeros(1), index)
    assert len(exact_of(attachment).groups) == len(LINEAR)
    del cache, layer, handle
    gc.collect()
    model(prompt(5))
    assert len(exact_of(attachment).groups) <= len(LINEAR)  # freed before the next ones were opened


@pytest.mark.parametrize(("name", "state_format"), [
    ("qwen3_5", "int4"), ("qwen3_5", "int4-log8"), ("qwen3_5", "residual"), ("qwen3_5", "int4-stochastic"),
    ("mamba2", "int4-log8")])
def test_failed_passes_leave_no_trace(name: str, state_format: str) -> None:
    plain, _ = conversation(ModelEngine(GEOMETRY), False, state_format, name)
    failed, _ = conversation(ModelEngine(GEOMETRY), True, state_format, name)
    assert all(torch.equal(a, b) for a, b in zip(plain, failed, strict=True))


def test_recalibrations_come_after_so_many_tokens_however_they_are_passed() -> None:
    engine = exact_engine()
    conversation(engine, False, recalibrate=4)
    states = engine.states
    assert isinstance(states, ExactStates)
    assert states.recalibrated == [(group, tokens) for tokens in (4, 8, 12) for group in range(len(LINEAR))]


def test_failed_passes_do_not_move_recalibrations(monkeypatch: pytest.MonkeyPatch) -> None:
    def logits(recalibrate: int | None, failing: bool) -> torch.Tensor:
        return torch.cat(conversation(ModelEngine(GEOMETRY), failing, "default", recalibrate=recalibrate)[0], 1)

    expected = logits(4, False)
    assert torch.equal(logits(4, True), expected) and not torch.equal(logits(None, False), expected)
    right = StateLayer.go_back

    def forgetful(layer: StateLayer, before: Remembered) -> None:
        right(layer, replace(before, tokens=layer.tokens))

    monkeypatch.setattr(StateLayer, "go_back", forgetful)
    assert not torch.equal(logits(4, True), expected)


@pytest.mark.parametrize("engine", [ModelEngine(GEOMETRY), exact_engine()])
def test_a_recalibration_that_fails_breaks_the_cache(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = hybrid()
    cache = attach(model, engine, recalibrate=3).new_cache()
    monkeypatch.setattr(type(engine.states), "recalibrate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model(prompt(3), cache=cache)
    with pytest.raises(CacheStateError, match="a recurrent recalibration ended early with KeyboardInterrupt"):
        model(prompt(3), cache=cache)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_recalibrations_that_cannot_be_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="every 0 tokens was asked for"):
        attach(hybrid(), ModelEngine(GEOMETRY), recalibrate=0)
    with pytest.raises(UnsupportedError, match="has no recurrent states, so there is nothing to recalibrate"):
        attach(small_model(), ExactEngine(16), recalibrate=8)


def test_without_the_way_back_the_test_above_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = conversation(ModelEngine(GEOMETRY), False)
    monkeypatch.setattr(ModelStates, "restore", lambda *_: None)
    failed, _ = conversation(ModelEngine(GEOMETRY), True)
    assert not all(torch.equal(a, b) for a, b in zip(plain, failed, strict=True))


@pytest.mark.parametrize("state_format", ["int4", "int8-log8"])
def test_the_integer_engine_is_the_integer_model(model: Any, state_format: str) -> None:
    """The first layer's outputs are those of the integer model, used directly on the same vectors."""
    calls: list[Any] = []
    engine = ModelEngine(GEOMETRY)
    attach(model, engine, state_format=state_format)
    original = StateLayer.rule

    def spy(self: StateLayer, *arguments: torch.Tensor) -> torch.Tensor:
        out = original(self, *arguments)
        if self.index == 0:
            calls.append((*arguments, out))
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateLayer, "rule", spy)
        cache = model(prompt(11)).cache
        for seed in range(3):
            model(prompt(1, seed=seed), cache=cache)
    query, key, value, g, beta, _ = calls[0]
    first = delta_tokens(query, key, value, g, beta, 0)
    peak = first.v.abs().amax((0, 2))
    units = delta_units(peak, peak, HEAD_DIM)
    heads, channels = first.v.shape[1:]
    state = new_state([MODES[state_format]] * heads, GatedDeltaNet.rule, GEOMETRY, channels=channels,
                      shift=units.shift, seed=1 + torch.arange(heads) * 7919)
    for query, key, value, g, beta, out in calls:
        tokens = delta_tokens(query, key, value, g, beta, 0)
        for t in range(len(tokens)):
            o = integer.step(state, integers(units, tokens.token(t), 1))
            if bool((due := integer.due(state)).any()):
                integer.commit(state, due)
            assert torch.equal(units.output(o).float(), out[0, t])
    layer = cache.layers[0]
    assert torch.equal(engine.states.state(layer.group).codes, state.codes)


def test_quantised_states_are_near_the_exact_ones() -> None:
    exact, _ = conversation(exact_engine(), False)
    stored, _ = conversation(ModelEngine(GEOMETRY), False, "int8-log8")
    for a, b in zip(exact, stored, strict=True):
        assert 0 < (a - b).norm() < 0.5 * a.norm()


def test_refusals(model: Any) -> None:
    with pytest.raises(UnsupportedError, match="recurrent states, which this device cannot keep"):
        attach(model, ExactEngine(HEAD_DIM))
    with pytest.raises(UnsupportedError, match="state format 'int3' is not known"):
        attach(model, exact_engine(), state_format="int3")
    attachment = attach(model, exact_engine())
    cache = model(prompt(5)).cache
    with pytest.raises(UnsupportedError, match="cannot be taken out of a recurrent state"):
        cache.crop(-1)
    with pytest.raises(CacheStateError, match="another batch"):
        model(prompt(1, batch=2), cache=cache)
    model(prompt(1), cache=cache)
    with pytest.raises(UnsupportedError, match="beam search"):
        model.generate(prompt(5), num_beams=2, max_new_tokens=4)
    assert isinstance(attachment.new_cache().get_recurrent_state(0), StateHandle)


def test_an_engine_that_breaks_in_a_step_breaks_the_cache(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attachment = attach(model, exact_engine())
    cache = model(prompt(5)).cache

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(exact_of(attachment), "step", broken)
        model(prompt(1), cache=cache)
    with pytest.raises(CacheStateError, match="ended early with KeyboardInterrupt"):
        model(prompt(1), cache=cache)
    cache.reset()
    model(prompt(4), cache=cache)
