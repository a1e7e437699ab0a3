"""New scales for states on the Verilated device, against COMMIT with fresh scales in the integer model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from statecell import recalibration
from statecell.bench.random_states import every_mode
from statecell.bench.steps import DifferenceError, Kind, check_state, compare
from statecell.device import Device, SlotError
from statecell.model.recurrent import integer
from statecell.model.recurrent.mode import Mode, Rule, Scales
from statecell.model.recurrent.state import State
from statecell.recalibration import recalibrate
from statecell_sim.simulator import open_transport


@pytest.fixture
def device() -> Iterator[Device]:
    with Device(open_transport("recur32", timeout=30.0)) as found:
        yield found


def logging() -> list[Mode]:
    """Modes whose scales the rows bring, with intervals from 1 to 16."""
    modes = [mode for mode in every_mode(True) if mode.scales != Scales.SUPPLIED]
    return [replace(mode, interval=(2, 5, 1, 16)[number % 4]) for number, mode in enumerate(modes[:10])]


def halves() -> list[Mode]:
    return [mode for mode in every_mode(True) if mode.scales != Scales.SUPPLIED]


NOTHING = recalibration.nothing
CASES: list[tuple[Kind, Callable[[], list[Mode]], int]] = [
    (Kind(rule=Rule(delta=True), strength=True, bonus=True), lambda: every_mode(True), 1),
    (Kind(rule=Rule(decay_first=False), lanes=True, strength=True, bonus=True), lambda: every_mode(False), 1),
    (Kind(rule=Rule(delta=True), strength=True), logging, 1),
    (Kind(rule=Rule(delta=True), strength=True), halves, 2),
]


def recalibrated(device: Device, kind: Kind, modes: list[Mode], of_halves: int) -> State:
    """Random states, all recalibrated in one call on the device and in the model; raises where they differ."""
    _, state = compare(device, kind, [modes], steps=24, generator=torch.Generator().manual_seed(31), halves=of_halves)
    first = [device.state(slot).mode.first_page for slot in range(state.heads)]
    before = state.scales.clone()
    recalibrate(device, [*range(state.heads), 0])
    integer.commit(state, torch.ones(state.heads, dtype=torch.bool), fresh=True)
    for slot, page in enumerate(first):
        check_state(device, slot, state, slot, page, kind, "recalibration")
    held = torch.tensor([mode.scales == Scales.HELD for mode in modes])
    assert bool((state.scales != before)[held].any())
    return state


@pytest.mark.parametrize(("kind", "modes", "of_halves"), CASES)
def test_every_bit_is_the_models(device: Device, kind: Kind, modes: Callable[[], list[Mode]], of_halves: int) -> None:
    state = recalibrated(device, kind, modes(), of_halves)
    recalibrate(device, range(state.heads))  # with empty logs
    integer.commit(state, torch.ones(state.heads, dtype=torch.bool), fresh=True)
    for slot in range(state.heads):
        check_state(device, slot, state, slot, device.state(slot).mode.first_page, kind, "recalibration")


def test_states_that_were_never_written(device: Device) -> None:
    device.reset()
    kind, modes = Kind(rule=Rule(delta=True)), logging()
    _, state = compare(device, kind, [modes], steps=1, generator=torch.Generator().manual_seed(1))
    recalibrate(device, range(state.heads))
    integer.commit(state, torch.ones(state.heads, dtype=torch.bool), fresh=True)
    for slot in range(state.heads):
        check_state(device, slot, state, slot, device.state(slot).mode.first_page, kind, "recalibration")


@pytest.mark.parametrize(("name", "mutant"), [
    ("fresh", lambda flags: flags), ("nothing", lambda mode, dim: replace(NOTHING(mode, dim), beta=0)),
])
def test_a_write_back_alone_or_none_is_found(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str, mutant: object
) -> None:
    kind, modes, of_halves = CASES[2 if name == "fresh" else 3]
    monkeypatch.setattr(recalibration, name, mutant)
    with pytest.raises(DifferenceError, match="Registers or rows differ"):
        recalibrated(device, kind, modes(), of_halves)


def test_what_is_no_state_is_refused_and_the_others_stay(device: Device) -> None:
    kind, modes, _ = CASES[0]
    _, state = compare(device, kind, [modes()[:3]], steps=4, generator=torch.Generator().manual_seed(2))
    device.open_slot(4)
    for slots in ([0, 4], [0, 5]):
        with pytest.raises(SlotError):
            recalibrate(device, slots)
    for slot in range(state.heads):
        check_state(device, slot, state, slot, device.state(slot).mode.first_page, kind, "refusal")
    recalibrate(device, [])
