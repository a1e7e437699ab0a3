"""Recurrent states on a Verilated device against those of the integer model, alone and under a model's layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
import torch

from statecell.device import ArrayFullError, Device
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, RecurrentError, Rounding, Rule, Scales, Storage
from statecell.model.rows import pack
from statecell.runtime.attention import attach
from statecell.runtime.device_engine import DeviceEngine
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.model_engine import ModelEngine
from statecell.runtime.recurrent.device_states import REPLAYED, DeviceStates
from statecell.runtime.recurrent.engine import StateShape, halves_of
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.spec import formats
from statecell.spec.geometry import config
from tests.runtime.recurrent.hybrids import conversation, hybrid
from tests.runtime.small_models import prompt

G = config("recur32")
MODES = [
    Mode(), Mode(storage=Storage.INT8, rounding=Rounding.STOCHASTIC),
    Mode(storage=Storage.RESIDUAL, scales=Scales.FRESH, rotate=False),
]
LOGS = [
    Mode(interval=8), Mode(storage=Storage.INT8, interval=3), Mode(), Mode(storage=Storage.RESIDUAL, interval=40),
]
LANES = [Mode(rotate=False), Mode(storage=Storage.INT8, rotate=False)]


@pytest.fixture
def engine() -> Iterator[DeviceEngine]:
    opened = DeviceEngine(Device.open("sim:recur32"))
    yield opened
    opened.close()


def states_of(engine: DeviceEngine) -> DeviceStates:
    assert engine.states is not None
    return engine.states


def tokens(count: int, modes: list[Mode], shape: StateShape, seed: int) -> Token:
    """Random tokens, about one in five frozen."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *size: int) -> torch.Tensor:
        return torch.randint(low, high, (count, len(modes), *size), generator=generator)

    q, k, other = (integers(-8000, 8000, shape.halves * G.head_dim) for _ in range(3))
    b = k if shape.rule.decay_first else other
    one, frozen = 1 << formats.DECAY_FRACTION, integers(0, 5) == 0
    decay = torch.where(frozen[..., None], one, integers(one // 2, one + 1, G.head_dim if shape.lane_decay else 1))
    beta = torch.where(frozen, 0, integers(0, 1 << formats.BETA_FRACTION))
    return Token(q, k, b, integers(-9000, 9000, shape.channels), decay, beta)


class Pair:
    """A group of a device and its twin in the integer model."""

    def __init__(self, device: DeviceStates, modes: list[Mode], shape: StateShape) -> None:
        self.device, self.model, self.modes, self.shape = device, ModelStates(G), modes, shape
        shift = list(range(len(modes)))
        self.group, self.twin = (x.open_states(modes, shape, shift) for x in (device, self.model))

    def step(self, count: int, seed: int) -> None:
        given = tokens(count, self.modes, self.shape, seed)
        assert torch.equal(self.device.step(self.group, given), self.model.step(self.twin, given))

    def recalibrate(self) -> None:
        self.device.recalibrate(self.group)
        self.model.recalibrate(self.twin)

    def snapshot(self) -> tuple[Any, Any]:
        return self.device.snapshot(self.group), self.model.snapshot(self.twin)

    def restore(self, snapshot: tuple[Any, Any]) -> None:
        self.device.restore(self.group, snapshot[0])
        self.model.restore(self.twin, snapshot[1])

    def check(self) -> None:
        """Every stored bit: rows, factors, noise and what is counted."""
        state, size = self.model.state(self.twin), G.row_bytes
        for head, found in enumerate(self.device.stored(self.group)):
            raw = pack(state.rows(head), G)
            first, second = (b"".join(raw[at:at + size] for at in range(start, len(raw), 2 * size))
                             for start in (0, size))
            wide = self.modes[head].planes == 2
            keys, values = found.keys[:len(first)], found.values[:len(first)]  # the log comes behind
            if found.status.registers.stored:
                assert (keys, values) == ((second, first) if wide else (first, second)), self.modes[head]
            else:
                assert not state.codes[head].any(), "rows that were never written count as 0"
            assert found.status.factors.tolist() == state.factor[head].tolist()
            registers, log = found.status.registers, state.log
            logs = log is not None and self.modes[head].interval > 1
            length = int(log.length[head]) if log is not None else 0
            assert (registers.logged, registers.lost) == ((length, int(state.lost[head])) if logs else (0, 0))
            assert not logs or found.status.ages[:length].tolist() == log.lost[head, :length].tolist()  # type: ignore[union-attr]
            assert (found.status.mode.seed, registers.skipped, registers.rescaled, registers.energy) == tuple(
                int(x[head]) for x in (state.noise, state.skipped, state.rescaled, state.energy()))


@pytest.mark.parametrize(("modes", "shape"), [
    (MODES, StateShape(rule=Rule(delta=True), channels=24)),
    (LOGS, StateShape(rule=Rule(delta=True), channels=32)),
    (LANES, StateShape(rule=Rule(decay_first=False), channels=16, lane_decay=True)),
    (MODES, StateShape(rule=Rule(delta=True), channels=24, halves=2)),
])
def test_every_bit_is_the_models_also_after_going_back(
    engine: DeviceEngine, modes: list[Mode], shape: StateShape
) -> None:
    device = states_of(engine)
    pair, other = Pair(device, modes, shape), Pair(device, modes, shape)
    empty = pair.snapshot()
    pair.step(5, seed=1)
    near = pair.snapshot()  # nothing was moved for it
    assert near[0].base is None and near[0].tokens == 5
    other.step(7, seed=2)
    pair.check()
    pair.recalibrate()
    pair.check()
    new = pair.snapshot()  # a recalibration is done again as tokens are taken again
    assert new[0].base is None and new[0].tokens == 5
    pair.step(REPLAYED, seed=3)
    far = pair.snapshot()
    assert far[0].base is not None and far[0].tokens == 0
    pair.step(3, seed=4)
    later = pair.snapshot()
    assert later[0].base is far[0].base and later[0].tokens == 3
    for snapshot in (far, later, near, new, later, empty, far, far):
        pair.restore(snapshot)
        pair.check()
        pair.step(2, seed=5)
        pair.check()
    other.check()
    other.step(1, seed=6)


@pytest.mark.parametrize(("modes", "channels", "halves"), [(MODES, 24, 1), (LOGS, 32, 1), (MODES, 24, 2)])
def test_counters(engine: DeviceEngine, modes: list[Mode], channels: int, halves: int) -> None:
    shape = StateShape(rule=Rule(delta=True), channels=channels, halves=halves)
    device = states_of(engine)
    pair = Pair(device, modes, shape)
    for count in (1, 6, 3):
        pair.step(count, seed=count)
        assert asdict(device.counters()) == asdict(pair.model.counters())
    seen = device.counters()
    assert seen.skipped > 0 and seen.rescaled > 0
    pair.recalibrate()
    for count in (1, 4):  # with tokens in the logs or not
        pair.recalibrate()
        pair.step(count, seed=8)
        assert asdict(device.counters()) == asdict(pair.model.counters())
    pair.recalibrate()
    seen = device.counters()
    assert seen == pair.model.counters() and seen.recalibrations == 4 * len(modes)
    counted = engine.counters()
    assert counted.key_rows + counted.value_rows == seen.rows_read and counted.rows_written == seen.rows_written
    snapshot = pair.snapshot()
    pair.step(4, seed=7)
    pair.restore(snapshot)
    device.free_states([pair.group])
    after = device.counters()
    assert after.tokens == seen.tokens + (4 + 15) * len(modes)  # fifteen were taken again
    assert after.rescaled > seen.rescaled


def test_groups_that_do_not_fit_are_refused_and_nothing_is_taken(engine: DeviceEngine) -> None:
    device, shape = states_of(engine), StateShape(rule=Rule(delta=True), channels=64)
    wide = Mode(storage=Storage.INT8)
    with pytest.raises(ArrayFullError, match=r"19 recurrent states were asked for and 18 of the 18 .* are free"):
        device.open_states([Mode()] * 19, shape, [0] * 19)
    with pytest.raises(ArrayFullError, match=r"needs 16 pages in a row and there are none among the 0 free ones"):
        device.open_states([wide] * 9, shape, [0] * 9)
    first = device.open_states([wide] * 8, shape, [0] * 8)  # all 128 pages
    with pytest.raises(ArrayFullError, match="pages in a row"):
        device.open_states([Mode()], shape, [0])
    device.free_states([first])
    pairs = [Pair(device, [Mode()] * 6, shape) for _ in range(2)]
    with pytest.raises(ArrayFullError, match="5 recurrent states were asked for and|pages in a row"):
        device.open_states([Mode()] * 5, shape, [0] * 5)
    for seed, pair in enumerate(pairs):
        pair.step(2, seed)
        pair.check()


def test_what_the_device_does_not_do_is_refused_and_the_state_stays(engine: DeviceEngine) -> None:
    device, shape = states_of(engine), StateShape(rule=Rule(delta=True), channels=24)
    for mode, bad, match in (
        (Mode(interval=8), shape, "this device does with one decay a head and 32 value channels"),
        (Mode(scales=Scales.SUPPLIED), shape, "scales that the host supplies"),
        (Mode(), StateShape(rule=Rule(), channels=20), "has 20 value channels"),
        (Mode(interval=8), StateShape(rule=Rule(), channels=32, halves=2), "keys of more than 32 lanes"),
        (Mode(rotate=False), StateShape(rule=Rule(), channels=32, halves=2, lane_decay=True), "keys of more than 32"),
    ):
        with pytest.raises(UnsupportedError, match=match):
            device.open_states([mode], bad, [0])
    with pytest.raises(UnsupportedError, match="decay per lane cannot be rotated"):
        device.open_states([Mode()], StateShape(rule=Rule(), channels=24, lane_decay=True), [0])
    pair = Pair(device, MODES, shape)
    pair.step(3, seed=1)
    good = tokens(4, MODES, shape, seed=2)
    for name, value, match in (
        ("decay", torch.zeros_like(good.decay), "decay must be 1 to"), ("v", good.v[..., :16], "v has shape"),
        ("q", good.q + 40000, "q must be"), ("b", good.b + 1, "b must be k"),
    ):
        with pytest.raises(RecurrentError, match=match):
            device.step(pair.group, Token(**{**vars(good), name: value}))
    pair.check()
    pair.step(1, seed=3)


@pytest.mark.parametrize("state_format", ["int4", "residual", "int4-stochastic"])
def test_failed_passes_of_a_model_leave_no_trace(state_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the integer model, whose logits are the device's; without the way back they are others."""
    expected, _ = conversation(ModelEngine(G), False, state_format)

    def on_device(failing: bool) -> bool:
        engine = DeviceEngine(Device.open("sim:recur32"))
        found, cache = conversation(engine, failing, state_format)
        cache.close()
        engine.close()
        return all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))

    assert on_device(False) and on_device(True)
    monkeypatch.setattr(DeviceStates, "restore", lambda *_: None)
    assert not on_device(True)


def test_a_model_with_keys_of_two_halves(engine: DeviceEngine) -> None:
    """Its states are the integer model's on the device; keys that are wider still are refused by name."""
    logits = []
    for used in (ModelEngine(G), engine):
        model = hybrid("qwen3_5-wide")
        attach(model, used, state_format="int4")
        logits.append(model(prompt(9)).logits)
    assert torch.equal(*logits)
    assert engine.states is not None and engine.states.counters().rows_read == 9 * 2 * 4 * 16 * 2
    with pytest.raises(UnsupportedError, match="keys of more than 32 lanes lie in two rows"):
        attach(hybrid("qwen3_5-wide"), engine, state_format="int8-log8")
    with pytest.raises(UnsupportedError, match="keys of 128 lanes, the engine's rows have 32"):
        halves_of(128, G.head_dim)


def test_a_batch_that_does_not_fit_leaves_the_device_as_it_was(engine: DeviceEngine) -> None:
    """Two sequences of eight states each are too many for eighteen, of which the softmax layer takes some."""
    model = hybrid()
    attachment = attach(model, engine, state_format="int4")
    expected = model(prompt(6)).logits
    for _ in range(2):
        with pytest.raises(ArrayFullError, match="8 recurrent states were asked for and 7 of the 18"):
            model(prompt(5, batch=2), cache=attachment.new_cache())
        assert torch.equal(model(prompt(6)).logits, expected)
    with pytest.raises(UnsupportedError, match="32 value channels; use a format that writes back at every token"):
        attach(hybrid(), engine, state_format="int4-log8")
