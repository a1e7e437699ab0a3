"""Scales that the host supplies: nearest bytes, held while they are no worse, and those that the array then stores."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import RecurrentError
from statecell.model.recurrent.named import FORMATS
from statecell.runtime.attention import attach, detach
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.model_engine import ModelEngine
from statecell.runtime.recurrent import layer
from statecell.runtime.recurrent.calibration import plans
from statecell.runtime.recurrent.guards import Guards, put
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.recurrent.modules import MULTIPLIERS, ScalePredictor
from statecell.runtime.recurrent.scales import Predicted, Stored, magnitudes
from statecell.runtime.support import model_geometry
from statecell.spec import formats
from tests.runtime.recurrent.hybrids import GEOMETRY, HEAD_DIM, LINEAR, hybrid
from tests.runtime.recurrent.test_model_states import ROWS, SHAPE
from tests.runtime.small_models import prompt

HEADS, WIDTH = 2, 6


def tokens(count: int, value: float = 1.0, seed: int = 0) -> Token:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(count, HEADS, HEAD_DIM, generator=generator) for _ in range(2))
    q, k = (torch.round(x / x.norm(dim=-1, keepdim=True) * 2**formats.KEY_FRACTION).long() for x in (q, k))
    v = (torch.randn(count, HEADS, ROWS, generator=generator) * 2000 * value).long()
    decay = torch.full((count, HEADS, 1), (1 << formats.DECAY_FRACTION) - 900_000)
    beta = torch.full((count, HEADS), 1 << (formats.BETA_FRACTION - 1))
    return Token(q, k, k, v, decay, beta)


def stepped(predictor: ScalePredictor, *steps: Token) -> tuple[ModelStates, list[torch.Tensor], list[torch.Tensor]]:
    """(engine of one group, bytes supplied for each token, bytes stored before each)."""
    states = ModelStates(GEOMETRY)
    group = states.open_states([FORMATS["int4-predicted"]] * HEADS, SHAPE, [1] * HEADS)
    given, stored = [], []
    for part in steps:
        source = Predicted(predictor, torch.zeros(1, len(part.k), WIDTH), part)

        def noted(t: int, now: Stored, source: Predicted = source) -> torch.Tensor:
            stored.append(now.scales)
            given.append(source(t, now))
            return given[-1]

        states.step(group, part, noted)
    stored.append(states.state(group).scales)
    return states, given, stored


def test_nearest_magnitudes() -> None:
    codes = torch.arange(formats.SCALE_MAGNITUDE_MAX + 1)
    values = (8 + (codes & 7)) * 2.0 ** ((codes >> 3) - formats.SCALE_BIAS).double()
    assert torch.equal(magnitudes(values), codes)
    assert torch.equal(magnitudes(values * 1.02), codes) and torch.equal(magnitudes(values * 0.98), codes)
    assert magnitudes(torch.tensor([1e-9, 1e9], dtype=torch.float64)).tolist() == [0, formats.SCALE_MAGNITUDE_MAX]


def test_what_is_supplied_is_stored() -> None:
    _, given, stored = stepped(ScalePredictor(WIDTH, HEADS, ROWS), tokens(20))
    for byte, after in zip(given, stored[1:], strict=True):
        assert torch.equal(byte, after)
    assert len({tuple(byte.flatten().tolist()) for byte in given}) > 3


def test_scales_are_held_until_the_state_outgrows_them() -> None:
    predictor = ScalePredictor(WIDTH, HEADS, ROWS)
    _, _, stored = stepped(predictor, tokens(20, 0.3), tokens(20, 0.03, 1), tokens(20, 3.0, 2))
    octave = 1 << formats.SCALE_MANTISSA
    changed = [int((b - a).remainder(octave).count_nonzero()) for a, b in pairwise(stored)]
    # decays take whole octaves; smaller values change nothing else at first, larger ones do
    assert sum(changed[21:30]) < sum(changed[40:49])
    assert int(stored[-1].sum()) > int(stored[40].sum())


def test_the_codes_use_their_range() -> None:
    states, _, _ = stepped(ScalePredictor(WIDTH, HEADS, ROWS), tokens(60))
    largest = states.state(0).high.abs().amax((-1, -2)).double()
    assert 3 <= float(largest.mean()) <= 8


def test_multipliers_move_the_scales() -> None:
    one, other = (ScalePredictor(WIDTH, HEADS, ROWS) for _ in range(2))
    with torch.no_grad():
        other.outer.bias.fill_(2.0)
        large = other(torch.zeros(WIDTH), torch.zeros(HEADS))
        other.outer.bias.fill_(9.0)
        assert float(other(torch.zeros(WIDTH), torch.zeros(HEADS)).max()) == MULTIPLIERS[1]
        other.outer.bias.fill_(-9.0)
        assert float(other(torch.zeros(WIDTH), torch.zeros(HEADS)).min()) == pytest.approx(MULTIPLIERS[0])
        other.outer.bias.fill_(2.0)
    assert torch.allclose(large, torch.tensor(2.0).exp().expand_as(large))
    first, second = (stepped(predictor, tokens(1))[1][0] for predictor in (one, other))
    assert bool(((second - first) - 8 * 2 / math.log(2)).abs().lt(2).all())  # eight steps an octave


def test_through_a_model() -> None:
    model: Any = hybrid()
    engine = ModelEngine(GEOMETRY)
    with pytest.raises(UnsupportedError, match="needs a trained scale predictor"):
        attach(model, engine, state_format="int4-predicted")
    put(model, Guards.new(model))
    attachment = attach(model, engine, state_format="int4-predicted")
    cache: Any = attachment.new_cache()
    with torch.no_grad():
        logits = model(prompt(12), cache=cache).logits
    group = cache.layers[LINEAR[0]].group
    states = attachment.engine.states
    assert isinstance(states, ModelStates)
    state = states.state(group)
    assert bool(state.modes.supplied.all()) and int(state.scales.max()) > 0 and bool(torch.isfinite(logits).all())
    detach(model)
    shape = model_geometry(model).states
    assert shape is not None
    guards = Guards.new(model)
    with torch.no_grad():
        guards.feedback.alpha.fill_(0.5)
    assert plans(shape, states, "residual", None, guards)[1].feedback == [8] * 4
    assert plans(shape, states, "int4", None, guards)[1].feedback is None


def test_each_token_has_the_scales_of_its_own_embedding_where_recalibrations_cut_a_pass(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = hybrid()
    put(model, Guards.new(model))
    seen: list[tuple[torch.Tensor, int]] = []

    class Seen(Predicted):
        def __init__(self, predictor: ScalePredictor, embedding: torch.Tensor, tokens: Token) -> None:
            seen.append((embedding, len(tokens.k)))
            super().__init__(predictor, embedding, tokens)

    monkeypatch.setattr(layer, "Predicted", Seen)
    attach(model, ModelEngine(GEOMETRY), state_format="int4-predicted", recalibrate=5)
    model(prompt(12))
    detach(model)
    assert [count for _, count in seen] == [5, 5, 2] * len(LINEAR)
    whole = seen[0][0]
    for (embedding, _), begin in zip(seen, (0, 5, 10) * len(LINEAR), strict=True):
        assert torch.equal(embedding, whole[:, begin:])


def test_without_scales_a_write_is_refused() -> None:
    states = ModelStates(GEOMETRY)
    group = states.open_states([FORMATS["int4-predicted"]] * HEADS, SHAPE, [0] * HEADS)
    with pytest.raises(RecurrentError, match="give its scale bytes"):
        states.step(group, tokens(1))


def test_feedback_reaches_the_array() -> None:
    states = ModelStates(GEOMETRY)
    codes = []
    for feedback in ([16, 16], [3, 16]):
        group = states.open_states([FORMATS["residual"]] * HEADS, SHAPE, [0] * HEADS, feedback)
        states.step(group, tokens(30))
        codes.append(states.state(group).codes)
    assert not torch.equal(codes[0][0], codes[1][0]) and torch.equal(codes[0][1], codes[1][1])
