"""Guards of a model: neutral before training; a frozen token leaves states and convolutions as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from statecell.model.recurrent.families import GatedDeltaNet
from statecell.runtime.attention import attach, detach
from statecell.runtime.errors import CalibrationError, UnsupportedError
from statecell.runtime.model_engine import ModelEngine
from statecell.runtime.recurrent import gating
from statecell.runtime.recurrent.gating import Passing
from statecell.runtime.recurrent.guards import FILE, Guards, guards_of, put
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.recurrent.modules import normalised
from statecell.store.models import load_model
from tests.hybrid_folder import make_hybrid_folder
from tests.runtime.recurrent.hybrids import GEOMETRY, LINEAR, hybrid
from tests.runtime.small_models import prompt
from tests.small_folder import make_folder

JUNK = 95


def closed_on(model: Any, token: int) -> Guards:
    """Guards whose gates are 0 for one token and 1 for every other."""
    guards = Guards.new(model)
    with torch.no_grad():
        every = normalised(model.get_input_embeddings().weight)
        direction = torch.linalg.pinv(every.double())[:, token].float()
        along = every @ direction
        nearest = torch.cat([along[:token], along[token + 1:]]).max()
        # linear from 1 at the nearest other token to -1, which is clamped, at this one
        slope = -2 / (along[token] - nearest)
        guards.freeze.weight.copy_((slope * every.shape[1] ** 0.5 * direction).expand_as(guards.freeze.weight))
        guards.freeze.bias.fill_(float(1 - slope * nearest))
    return guards


@pytest.fixture(params=["qwen3_5", "mamba2"])
def model(request: pytest.FixtureRequest) -> Any:
    return hybrid(request.param)


def after(model: Any, ids: Tensor, parts: Callable[[Tensor], Any] = lambda ids: [ids]) -> Any:
    """The cache of a float pass."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        for part in parts(ids):
            model(part, cache=cache, use_cache=True)
    return cache


def with_junk(ids: Tensor, at: int, run: int) -> Tensor:
    return torch.cat([ids[:, :at], torch.full((len(ids), run), JUNK), ids[:, at:]], 1)


def test_untrained_guards_change_nothing(model: Any) -> None:
    ids = prompt(12)
    with torch.no_grad():
        before = model(ids).logits
        put(model, Guards.new(model))
        assert torch.equal(model(ids).logits, before)
    assert bool((gating.gates() == 1).all()) and gating.passing() is None
    guards = guards_of(model)
    assert guards is not None and guards.sixteenths(0) == [13] * 4


@pytest.mark.parametrize("parts", [lambda ids: [ids], lambda ids: ids.split(1, 1), lambda ids: ids.split(5, 1)],
                         ids=["whole", "tokens", "parts"])
def test_a_frozen_token_leaves_the_layer_as_it_is(model: Any, parts: Callable[[Tensor], Any]) -> None:
    ids = prompt(12, batch=2) % JUNK
    put(model, closed_on(model, JUNK))
    plain = after(model, ids, parts).layers[LINEAR[0]]
    for at, run in ((12, 7), (5, 1), (5, 9), (2, 4), (0, 3)):
        layer = after(model, with_junk(ids, at, run), parts).layers[LINEAR[0]]
        # the first layer sees text alone; the later ones also what the softmax layer makes of the junk
        assert torch.allclose(layer.recurrent_states[0], plain.recurrent_states[0], atol=1e-6), (at, run)
        # the last column is the oldest of the four that transformers keeps, where three are used
        assert torch.allclose(layer.conv_states[0][..., 1:], plain.conv_states[0][..., 1:], atol=1e-6), (at, run)
    with gating.all_open():
        layer = after(model, with_junk(ids, 5, 9), parts).layers[LINEAR[0]]
    assert not torch.allclose(layer.recurrent_states[0], plain.recurrent_states[0], atol=1e-4)
    assert not torch.allclose(after(model, with_junk(ids, 12, 1), parts).layers[LINEAR[0]].conv_states[0],
                              after(model, ids[:, :11], parts).layers[LINEAR[0]].conv_states[0], atol=1e-4)


def test_rows_of_a_batch_freeze_on_their_own(model: Any) -> None:
    put(model, closed_on(model, JUNK))
    one, two = prompt(10) % JUNK, prompt(10, seed=1) % JUNK
    both = torch.cat([with_junk(one, 4, 2), torch.cat([two, two[:, :2]], 1)])
    states = after(model, both).layers[LINEAR[0]].recurrent_states[0]
    alone = [after(model, ids).layers[LINEAR[0]].recurrent_states[0] for ids in (one, torch.cat([two, two[:, :2]], 1))]
    assert torch.allclose(states, torch.cat(alone), atol=1e-6)


def test_a_gate_of_zero_skips_the_write_of_stored_states(model: Any) -> None:
    ids = prompt(10) % JUNK
    put(model, closed_on(model, JUNK))
    attachment = attach(model, ModelEngine(GEOMETRY))
    states = attachment.engine.states
    assert isinstance(states, ModelStates)
    cache: Any = attachment.new_cache()
    with torch.no_grad():
        model(ids, cache=cache)
        before, skipped = states.snapshot(cache.layers[LINEAR[0]].group), states.counters().skipped
        junk = torch.cat([ids, torch.full((1, 6), JUNK)], 1)
        model(junk[:, 10:], cache=cache, attention_mask=torch.ones_like(junk))
        now = states.state(cache.layers[LINEAR[0]].group)
        assert states.counters().skipped - skipped == 2 * 4 * 6  # layers, heads, tokens
        assert torch.equal(now.codes, before.codes) and torch.equal(now.factor, before.factor)
        model(torch.cat([junk, ids], 1)[:, 16:], cache=cache, attention_mask=torch.ones(1, 26).long())
        assert not torch.equal(states.state(cache.layers[LINEAR[0]].group).codes, before.codes)
    detach(model)


def test_gates_between_are_those_of_the_model() -> None:
    generator = torch.Generator().manual_seed(0)
    k, v = torch.randn(5, 2, 8, generator=generator), torch.randn(5, 2, 4, generator=generator)
    g, beta, gates = (torch.rand(5, 2, generator=generator) for _ in range(3))
    tokens = GatedDeltaNet.tokens(k, k, v, (-g).exp(), beta).frozen(gates)
    gating.begin(torch.zeros(1, 5, 3), gates[None, :, None])
    gating.enter(0)
    folded, strength = gating.gated(-g[None], beta[None])
    layer = gating.leave()
    assert torch.allclose(folded[0].exp(), tokens.decay[..., 0], atol=1e-6)
    assert torch.allclose(strength[0], tokens.beta, atol=1e-6)
    assert isinstance(layer, Passing) and gating.passing() is None
    assert gating.gated(-g, beta)[0] is not None and torch.equal(gating.gated(-g, beta)[1], beta)


def test_guards_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path / "cache"))
    folder = make_hybrid_folder(tmp_path / "small")
    loaded = load_model(folder)
    assert guards_of(loaded.model) is None
    guards = closed_on(loaded.model, ord("#"))
    guards.save(folder / FILE)
    again = load_model(folder)
    with torch.no_grad():
        again.model(torch.tensor([list(b"All #")]))
    assert gating.gates()[0, :, 0, 0].tolist() == [1, 1, 1, 1, 0]
    known = guards_of(again.model)
    assert known is not None
    for name, value in guards.state_dict().items():
        assert torch.equal(known.state_dict()[name], value), name
    (folder / FILE).write_bytes(b"x")
    with pytest.raises(CalibrationError, match="cannot be read"):
        load_model(folder)
    other = Guards.new(hybrid())
    other.save(folder / FILE)
    with pytest.raises(CalibrationError, match="another model|cannot be read"):
        load_model(folder)


def test_a_model_without_states_has_nothing_to_guard(tmp_path: Path) -> None:
    model = load_model(make_folder(tmp_path / "llama")).model
    assert guards_of(model) is None
    with pytest.raises(UnsupportedError, match="nothing to guard"):
        Guards.new(model)
