"""The vectorised model against the plain-Python oracle, every bit, over modes, rules and families' inputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from statecell.model.recurrent import integer, log, noise, readout, writeback
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, RecurrentError, Rounding, Rule, Scales, Storage
from statecell.model.recurrent.state import ONE_DECAY, State, new_state
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from tests.model.recurrent.oracle import Head

GEOMETRIES = [config("tiny"), config("tiny2"), config("wide128"), config("bench64")]
CHANNELS = 3


def modes(rotate: bool) -> list[Mode]:
    """Every storage x scales x rounding, with intervals 1, 2 and 5 in turn."""
    return [Mode(storage=storage, scales=scales, rounding=rounding, interval=(1, 2, 5)[i % 3], rotate=rotate)
            for i, (storage, scales, rounding) in enumerate(
                (a, b, c) for a in Storage for b in Scales for c in Rounding)]


def token(generator: torch.Generator, state: State, t: int) -> Token:
    """Keys of many sizes; decays from tiny to 1; some tokens frozen, some of value 0."""
    h, r, d = state.heads, state.channels, state.width
    spread = (2.0 ** torch.randint(2, 14, (2, h, 1), generator=generator))
    q, k = (torch.randn(h, d, generator=generator) * s for s in spread)
    b = torch.where(torch.rand(h, 1, generator=generator) < 0.5, k, k * 1.5)
    v = torch.randn(h, r, generator=generator) * 2.0 ** torch.randint(0, 14, (h, 1), generator=generator)
    lost = torch.rand(h, state.factor.shape[1], generator=generator, dtype=torch.float64)
    decay = 1 - lost ** torch.tensor([1.0, 4.0, 30.0, 300.0], dtype=torch.float64)[t % 4]
    beta = torch.rand(h, generator=generator, dtype=torch.float64) * 1.5
    whole = [x.round().clamp(-32767, 32767).long() for x in (q, k, b, v)]
    fixed = (decay * ONE_DECAY).round().long().clamp(min=1), (beta * (1 << formats.BETA_FRACTION)).round().long()
    still = torch.rand(h, generator=generator) < 0.15
    q, k, b, v = whole
    return Token(q, k, b, v, torch.where(still[:, None], ONE_DECAY, fixed[0]), torch.where(still, 0, fixed[1]))


def supplied(generator: torch.Generator, state: State) -> torch.Tensor:
    high = torch.randint(0, 120, state.scales.shape, generator=generator)
    return high + 128 * torch.randint(0, 2, state.scales.shape, generator=generator)


def heads(state: State) -> list[Head]:
    g = state.geometry
    return [Head(state.width, g.group, g.query_bits, state.channels, m.storage.value, m.scales.value,
                 m.rounding == Rounding.STOCHASTIC, m.interval, m.rotate, state.rule.delta, state.rule.decay_first,
                 state.factor.shape[1] > 1, int(state.feedback[h]), int(state.shift[h]), int(state.noise[h]),
                 state.halves)
            for h, m in enumerate(state.modes.each)]


def same(state: State, plain: list[Head]) -> None:
    for h, head in enumerate(plain):
        name = f"head {h}, {state.modes.each[h]}"
        assert state.codes[h].flatten(-2).tolist() == [row.codes for row in head.rows], name
        assert state.scales[h].tolist() == [row.scales for row in head.rows], name
        assert state.factor[h].tolist() == head.factor and int(state.lost[h]) == head.lost, name
        assert int(state.skipped[h]) == head.skipped and int(state.rescaled[h]) == head.rescaled, name
        assert int(state.noise[h]) == head.noise, name


def compare(geometry: Geometry, rule: Rule, lane_decay: bool, steps: int, seed: int, halves: int = 1) -> dict[str, int]:
    """Random tokens, commits when due, one recalibration; returns how often each event happened."""
    generator = torch.Generator().manual_seed(seed)
    each = modes(not lane_decay)
    count = len(each)
    state = new_state(each, rule, geometry, channels=CHANNELS, halves=halves, lane_decay=lane_decay,
                      feedback=torch.arange(count) % 17, shift=torch.arange(count) % 5,
                      seed=torch.arange(count) * 9973 + 5)
    plain = heads(state)
    for t in range(steps):
        one, scales = token(generator, state, t), supplied(generator, state)
        o = integer.step(state, one, scales=scales)
        for h, head in enumerate(plain):
            expected = head.step(**{name: value[h].tolist() for name, value in vars(one).items()},
                                 supplied=scales[h].tolist())
            assert o[h].tolist() == expected, f"token {t}, head {h}, {each[h]}"
        commits, fresh = integer.due(state), t == steps // 2
        if fresh:
            commits = torch.ones(count, dtype=torch.bool)
        if bool(commits.any()):
            scales = supplied(generator, state)
            integer.commit(state, commits, scales=scales, fresh=fresh)
            for h, head in enumerate(plain):
                if commits[h]:
                    head.commit(scales[h].tolist(), fresh)
        same(state, plain)
    return {"skipped": int(state.skipped.sum()), "rescaled": int(state.rescaled.sum())}


CASES = [(g, Rule(delta=delta, decay_first=first), lanes) for g, (delta, first, lanes) in zip(
    [*GEOMETRIES, *GEOMETRIES], [(True, True, False), (False, True, False), (True, True, False), (True, True, False),
                                 (False, False, True), (True, True, True), (False, True, True), (False, False, False)],
    strict=True)]


@pytest.mark.parametrize(("geometry", "rule", "lane_decay"), CASES)
def test_every_mode_equals_the_oracle(geometry: Geometry, rule: Rule, lane_decay: bool) -> None:
    steps = {32: 24, 64: 10, 128: 6}[geometry.head_dim]
    events = compare(geometry, rule, lane_decay, steps, seed=1)
    assert events["skipped"] > 5 and events["rescaled"] > 10, "the cases exercise too little"


HALVES = [("tiny", Rule(delta=True), False), ("tiny2", Rule(decay_first=False), True), ("bench64", Rule(), False)]


@pytest.mark.parametrize(("name", "rule", "lane_decay"), HALVES)
def test_keys_of_two_halves_equal_the_oracle(name: str, rule: Rule, lane_decay: bool) -> None:
    events = compare(config(name), rule, lane_decay, 10, seed=2, halves=2)
    assert events["skipped"] > 5 and events["rescaled"] > 10, "the cases exercise too little"


ADVANCE, QUERIES, TURNED = noise.advance, readout.queries, State.turned
HALF_MUTANTS = {
    "noise of a channel, not of a row": (noise, "advance", lambda state, rows: (
        ADVANCE(state, rows)[0][:, ::2].repeat_interleave(2, 1), ADVANCE(state, rows)[1])),
    "the scale of the first half for both": (integer, "queries", lambda state, vectors: dataclasses.replace(
        QUERIES(state, vectors), exponent=QUERIES(state, vectors).exponent[..., :1].expand(-1, -1, 2))),
    "a half unrotated": (State, "turned", lambda state, x: torch.cat([TURNED(state, x)[:, :32], x[:, 32:]], 1)),
}


@pytest.mark.parametrize("name", HALF_MUTANTS)
def test_the_oracle_catches_a_mutant_of_the_halves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, mutant = HALF_MUTANTS[name]
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        compare(config("tiny"), Rule(delta=True), False, 10, seed=2, halves=2)


CONSTANTS = {"HELD_CLIP": 0, "HELD_SHRINK": 3, "GAIN_BITS": 13, "MIX_BITS": 18, "RECUR_GUARD": 5, "LFSR_LEAP": 31,
             "SHARE_BITS": 15, "SHARE_GUARD": 3, "BETA_FRACTION": 13, "RECUR_PARTIAL_BITS": 20, "UPDATE_BITS": 9}


@pytest.mark.parametrize("name", CONSTANTS)
def test_the_oracle_catches_a_changed_constant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise._tables.cache_clear()
    monkeypatch.setattr(formats, name, CONSTANTS[name])
    with pytest.raises(AssertionError):
        for geometry, rule, lanes in (CASES[0], CASES[4]):
            compare(geometry, rule, lanes, 24, seed=1)
    monkeypatch.undo()
    noise._tables.cache_clear()


def broken_choose(state: State, update: Any, scales: Any, fresh: bool) -> Any:
    chosen, renewed = CHOOSE(state, dataclasses.replace(update, raised=torch.zeros_like(update.raised)), scales, fresh)
    return chosen, renewed


CHOOSE, READ, EIGHT = writeback.choose, readout.read, log.eight_bits
MUTANTS = {
    "an overflow that raised the working scale is overlooked": (writeback, "choose", broken_choose),
    "one read-out bit": (integer, "read", lambda s, q, lost: READ(s, q, lost) & ~1),
    "log keys that do not age": (log, "folded", lambda s: (s.log.keys, s.log.key_scales, s.log.lost * 0)),
    "log rows of 7 bits": (log, "eight_bits", lambda y, g: (EIGHT(y, g)[0] & ~1, EIGHT(y, g)[1])),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_catches_a_mutant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(module, attribute, mutant)
    with pytest.raises(AssertionError):
        compare(config("tiny"), Rule(delta=True), False, 24, seed=1)


def test_updated_lanes_fill_their_width_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """UPDATE_BITS holds every updated lane, two bits less would not."""
    largest = []

    def watched(state: State, update: Any, scales: Any, fresh: bool) -> Any:
        largest.append(int(update.lanes.abs().max()))
        return CHOOSE(state, update, scales, fresh)

    monkeypatch.setattr(writeback, "choose", watched)
    compare(config("tiny"), Rule(delta=True), False, 24, seed=1)
    assert 1 << (formats.UPDATE_BITS - 3) < max(largest) < 1 << (formats.UPDATE_BITS - 1)


def small(**changes: Any) -> State:
    mode = Mode(**{"interval": 1} | changes)
    return new_state([mode, mode], Rule(delta=True), config("tiny"), channels=4)


def plain_token(state: State, **changes: Any) -> Token:
    one = token(torch.Generator().manual_seed(3), state, 0)
    return dataclasses.replace(one, beta=torch.full_like(one.beta, 9000), **changes)


def snapshot(state: State) -> list[Any]:
    parts = [state.codes, state.scales, state.factor, state.lost, state.noise, state.skipped, state.rescaled]
    if state.log is not None:
        parts += [x for x in vars(state.log).values() if x is not None]
    return [p.tolist() for p in parts]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"decay": torch.zeros(2, 1).long()}, "decay must be 1 to 16777216"),
     ({"decay": torch.full((2, 1), ONE_DECAY + 1)}, "decay must be"),
     ({"k": torch.full((2, 32), 40000)}, "k must be -32767 to 32767"),
     ({"v": torch.zeros(2, 5).long()}, "v has shape"), ({"beta": torch.full((2,), 1 << 16)}, "beta must be")],
)
def test_a_bad_token_is_named_and_changes_nothing(changes: dict[str, Any], message: str) -> None:
    state = small(interval=4)
    integer.step(state, plain_token(state))
    before = snapshot(state)
    bad = dataclasses.replace(plain_token(state), **changes)
    with pytest.raises(RecurrentError, match=message):
        integer.step(state, bad)
    assert snapshot(state) == before


def test_a_full_log_is_refused_and_changes_nothing() -> None:
    state = small(interval=2)
    for _ in range(2):
        integer.step(state, plain_token(state))
    before = snapshot(state)
    assert integer.due(state).tolist() == [True, True]
    with pytest.raises(RecurrentError, match="log is full; COMMIT"):
        integer.step(state, plain_token(state))
    assert snapshot(state) == before
    integer.commit(state, integer.due(state))
    integer.step(state, plain_token(state))


def test_modes_and_states_that_cannot_be_are_refused() -> None:
    with pytest.raises(RecurrentError, match="interval is 129"):
        Mode(interval=129)
    with pytest.raises(RecurrentError, match="rotate=False"):
        new_state([Mode()], Rule(), config("tiny"), channels=2, lane_decay=True)
    with pytest.raises(RecurrentError, match="seed"):
        new_state([Mode()], Rule(), config("tiny"), channels=2, seed=0)
    state = small(scales=Scales.SUPPLIED)
    with pytest.raises(RecurrentError, match="give its scale bytes"):
        integer.step(state, plain_token(state))
    with pytest.raises(RecurrentError, match="exponents 0 to 14"):
        integer.step(state, plain_token(state), scales=torch.full_like(state.scales, 120))


@pytest.mark.parametrize("interval", [1, 4])
def test_frozen_tokens_leave_every_bit(interval: int) -> None:
    state = small(interval=interval, storage=Storage.RESIDUAL, scales=Scales.FRESH)
    integer.step(state, plain_token(state))
    still = plain_token(state, decay=torch.full((2, 1), ONE_DECAY))
    still = dataclasses.replace(still, beta=torch.zeros(2).long())
    before = snapshot(state)
    for _ in range(20):
        integer.step(state, still)
    after = snapshot(state)
    assert state.skipped.tolist() == [20, 20]
    state.skipped -= 20
    assert snapshot(state) == before and after != before


def test_rows_are_the_arrays_rows() -> None:
    """Raw rows give back the elements, energy is the norm of the high planes."""
    state = new_state([Mode(), Mode(storage=Storage.INT8)], Rule(), config("bench64"), channels=5)
    for t in range(6):
        one = token(torch.Generator().manual_seed(t), state, 2)
        integer.step(state, dataclasses.replace(one, beta=torch.full_like(one.beta, 16384)))
    factor = state.factor.double() / (1 << 23)
    one_plane, two_planes = state.rows(0), state.rows(1)
    assert torch.equal(one_plane.dequantise() * factor[0], state.values()[0])
    planes = two_planes.dequantise()
    assert two_planes.low.tolist() == [True, False] * 5
    assert torch.equal((planes[0::2] + planes[1::2]) * factor[1], state.values()[1])
    high = torch.stack([one_plane.dequantise(), planes[1::2]])
    assert torch.equal(state.energy(), (high.square().sum((1, 2)) * 4096).long())
