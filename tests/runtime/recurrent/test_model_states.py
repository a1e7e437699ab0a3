"""The integer model as a state engine counts and keeps what a device would."""

from __future__ import annotations

import pytest
import torch

from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, RecurrentError, Rule, Storage
from statecell.runtime.recurrent.engine import StateCounters, StateShape
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.spec import formats
from tests.runtime.recurrent.hybrids import GEOMETRY, HEAD_DIM

ROWS = 8
SHAPE = StateShape(rule=Rule(delta=True), channels=ROWS)
MODES = [Mode(), Mode(storage=Storage.INT8), Mode(interval=4)]


def tokens(count: int, seed: int = 0, frozen: bool = False) -> Token:
    generator = torch.Generator().manual_seed(seed)
    heads = len(MODES)
    q, k = (torch.randint(-2000, 2000, (count, heads, HEAD_DIM), generator=generator) for _ in range(2))
    v = torch.randint(-8000, 8000, (count, heads, ROWS), generator=generator)
    one = 1 << formats.DECAY_FRACTION
    decay = torch.full((count, heads, 1), one if frozen else one - 40000)
    beta = torch.full((count, heads), 0 if frozen else 1 << (formats.BETA_FRACTION - 1))
    return Token(q, k, k, v, decay, beta)


def test_counters() -> None:
    states = ModelStates(GEOMETRY)
    group = states.open_states(MODES, SHAPE, [0, 0, 0])
    assert states.step(group, tokens(9)).shape == (9, 3, ROWS)
    seen = states.counters()
    # one plane, two planes, one plane written back after tokens 4 and 8; a logged token has two rows in two planes, and
    # four of them are read in a write-back, their keys for each row
    expected = StateCounters(
        tokens=27, rows_read=9 * 4 * ROWS + 4 * 12 + 2 * (4 * 4 + 2 * ROWS * 5),
        rows_written=(9 + 18 + 2) * ROWS + 4 * 9, commits=2, skipped=0, rescaled=seen.rescaled)
    assert seen == expected and seen.rescaled > 0
    states.step(group, tokens(2, frozen=True))
    assert states.counters().skipped == 6 and states.counters().rows_written == expected.rows_written


def test_one_call_or_many_is_the_same() -> None:
    results = []
    for parts in ([11], [1] * 11, [4, 7]):
        states = ModelStates(GEOMETRY)
        group = states.open_states(MODES, SHAPE, [0, 0, 0])
        all_tokens, outputs, begin = tokens(11), [], 0
        for part in parts:
            piece = Token(**{name: value[begin:begin + part] for name, value in vars(all_tokens).items()})
            outputs.append(states.step(group, piece))
            begin += part
        results.append((torch.cat(outputs), states.state(group).codes, states.counters()))
    for outputs_, codes, counters in results[1:]:
        assert torch.equal(outputs_, results[0][0]) and torch.equal(codes, results[0][1])
        assert counters == results[0][2]


def test_a_snapshot_brings_everything_back() -> None:
    states = ModelStates(GEOMETRY)
    group = states.open_states(MODES, SHAPE, [0, 0, 0])
    states.step(group, tokens(6))
    snapshot = states.snapshot(group)
    first = states.step(group, tokens(7, seed=1))
    for _ in range(2):
        states.step(group, tokens(3, seed=2))
        states.restore(group, snapshot)
        assert torch.equal(states.step(group, tokens(7, seed=1)), first)
        states.restore(group, snapshot)
    states.step(group, tokens(3, seed=2))
    assert not torch.equal(states.step(group, tokens(7, seed=1)), first)


def test_bad_tokens_change_nothing() -> None:
    states = ModelStates(GEOMETRY)
    group = states.open_states(MODES, SHAPE, [0, 0, 0])
    states.step(group, tokens(3))
    before, counters = states.state(group).codes.clone(), states.counters()
    bad = tokens(4)
    bad.decay[3, 0, 0] = 0
    with pytest.raises(RecurrentError, match="decay must be 1 to"):
        states.step(group, bad)
    with pytest.raises(RecurrentError, match="q has shape"):
        states.step(group, Token(**{name: value[0] for name, value in vars(tokens(4)).items()}))
    assert torch.equal(states.state(group).codes, before) and states.counters() == counters
