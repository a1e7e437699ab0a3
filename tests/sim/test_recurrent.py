"""Recurrent states on the Verilated device, through the driver, against the integer model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from statecell.bench import random_states
from statecell.bench.random_states import (
    every_mode,
    head_mode,
    head_modes,
    head_tokens,
    pages,
    random_scales,
    random_token,
)
from statecell.bench.steps import Kind, compare
from statecell.device import (
    Device,
    DeviceError,
    StateModeError,
    StateToken,
    StateValueError,
    append_request,
    attend_request,
    map_request,
    open_state_request,
    outputs,
    recur_request,
    restore_request,
)
from statecell.link.framing import Request
from statecell.model.recurrent import integer
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, Rule, Scales, Storage
from statecell.model.recurrent.state import State
from statecell.snapshot import StateSnapshot, encode_status
from statecell.spec.commands import Opcode, StateFlag, StateMode, Status
from statecell.spec.geometry import config
from statecell_sim.golden import GoldenDevice
from statecell_sim.simulator import open_transport

G = config("recur32")
CHANNELS = 24
ROUND = 40


@pytest.fixture
def device() -> Iterator[Device]:
    with Device(open_transport(G.name, timeout=30.0)) as found:
        yield found


def random_heads(modes: list[Mode], rule: Rule, lane_decay: bool, generator: torch.Generator,
                 channels: int = CHANNELS, halves: int = 1) -> State:
    return random_states.random_heads(modes, rule, G, generator, channels=channels, lane_decay=lane_decay,
                                      halves=halves)


def state_mode(state: State, head: int, first_page: int) -> StateMode:
    return head_mode(state, head, first_page, bonus=True)


def state_token(state: State, token: Token, scales: torch.Tensor, head: int) -> StateToken:
    return head_tokens(state, token, scales, bonus=True)[head]


RULES = [(Rule(delta=True), False), (Rule(), False), (Rule(decay_first=False), True), (Rule(delta=True), True)]


@pytest.mark.parametrize(("rule", "lane_decay"), RULES)
def test_every_mode_equals_the_model(device: Device, rule: Rule, lane_decay: bool) -> None:
    kind = Kind(rule=rule, lanes=lane_decay, strength=True, bonus=True)
    generator = torch.Generator().manual_seed(21)
    _, state = compare(device, kind, [every_mode(not lane_decay)], steps=40, generator=generator, channels=CHANNELS)
    assert int(state.skipped.min()) > 0


@pytest.mark.parametrize("rule", [Rule(delta=True), Rule(decay_first=False)])
def test_every_mode_with_a_log_equals_the_model(device: Device, rule: Rule) -> None:
    kind = Kind(rule=rule, strength=True, bonus=True)
    generator = torch.Generator().manual_seed(22)
    _, state = compare(device, kind, [logging_modes()], steps=80, generator=generator)
    assert int(state.skipped.min()) > 0


def logging_modes() -> list[Mode]:
    """Modes whose scales the rows bring, with intervals from 1 to 40."""
    modes = [mode for mode in every_mode(True) if mode.scales != Scales.SUPPLIED]
    return [replace(mode, interval=(2, 5, 1, 40, 3, 8)[number % 6]) for number, mode in enumerate(modes[:10])]


@pytest.mark.parametrize("rule", [Rule(delta=True), Rule(), Rule(decay_first=False)])
def test_every_mode_with_keys_of_two_halves_equals_the_model(device: Device, rule: Rule) -> None:
    kind = Kind(rule=rule, strength=True, bonus=True)
    generator = torch.Generator().manual_seed(23)
    _, state = compare(device, kind, [modes_of_halves()], steps=80, generator=generator, channels=CHANNELS, halves=2)
    assert int(state.skipped.min()) > 0


def modes_of_halves() -> list[Mode]:
    """Modes whose scales the rows bring."""
    return [mode for mode in every_mode(True) if mode.scales != Scales.SUPPLIED]


def test_keys_of_one_and_of_two_halves_take_turns(device: Device) -> None:
    """Commands back to back over slots of both kinds, and of a log: each has the model's outputs."""
    device.reset()
    generator = torch.Generator().manual_seed(24)
    modes = [Mode(), Mode(storage=Storage.INT8)]
    states = [random_heads(modes, Rule(delta=True), False, generator, G.head_dim, halves) for halves in (1, 2)]
    states.append(random_heads([Mode(interval=32)], Rule(delta=True), False, generator, G.head_dim))
    slots, page = [0, 2, 4], 0
    for state, first in zip(states, slots, strict=True):
        for head in range(state.heads):
            device.open_state(first + head, state_mode(state, head, page))
            page += pages(state, head)
    requests: list[Request] = []
    expected: list[list[int]] = []
    for number in range(60):
        which = int(torch.randint(0, 3, (), generator=generator))
        state = states[which]
        token = random_token(state, generator)
        requests += [recur_request(slots[which] + head, state_token(state, token, state.scales, head))
                     for head in range(state.heads)]
        expected += integer.step(state, token).tolist()
        if number % 15 == 14:
            requests.append(Request(opcode=Opcode.COMMIT, slot=slots[2]))
            integer.commit(states[2], torch.tensor([True]))
    answers = [answer for request, answer in zip(requests, device.require(requests), strict=True)
               if request.opcode == Opcode.RECUR]
    assert [outputs(answer).tolist() for answer in answers] == expected


@pytest.mark.parametrize(("rule", "lane_decay", "logs"), [*((*rule, False) for rule in RULES), (*RULES[0], True)])
def test_snapshots_of_every_mode_come_back_bit_for_bit(
    device: Device, rule: Rule, lane_decay: bool, logs: bool
) -> None:
    snapshots(device, rule, lane_decay, logs)


def test_snapshots_of_keys_of_two_halves_come_back_bit_for_bit(device: Device) -> None:
    snapshots(device, Rule(delta=True), False, False, halves=2)


def snapshots(device: Device, rule: Rule, lane_decay: bool, logs: bool, halves: int = 1) -> None:
    """Tokens after a snapshot, back to it, the same tokens again; then the snapshot in a slot of its own. With logs
    that hold some tokens then, or none as they are committed at once.
    """
    device.reset()
    generator = torch.Generator().manual_seed(8)
    modes = (every_mode(not lane_decay) if halves == 1 else modes_of_halves())[::2][:8]
    if logs:
        modes = [replace(mode, interval=(12, 2, 24)[number % 3]) for number, mode in enumerate(logging_modes()[:7])]
    state = random_heads(modes, rule, lane_decay, generator, G.head_dim if logs else CHANNELS, halves)
    opening = head_modes(state, range(state.heads), bonus=True)
    for head, mode in enumerate(opening):
        device.open_state(head, mode)

    def tokens(count: int, seed: int) -> list[Request]:
        mine = torch.Generator().manual_seed(seed)
        requests: list[Request] = []
        for token, scales in [(random_token(state, mine), random_scales(state, mine)) for _ in range(count)]:
            requests += [recur_request(head, state_token(state, token, scales, head)) for head in range(state.heads)]
            requests += [Request(opcode=Opcode.COMMIT, slot=head) for head, mode in enumerate(modes)
                         if mode.interval == 2]
        return requests

    def same(a: StateSnapshot, b: StateSnapshot) -> bool:
        return encode_status(a.status) == encode_status(b.status) and (a.keys, a.values) == (b.keys, b.values)

    free = G.slots - 1
    empty = [device.snapshot(head) for head in range(state.heads)]
    device.require(tokens(6, 1))
    before = [device.snapshot(head) for head in range(state.heads)]
    answers = device.require(tokens(4, 2))
    after = [device.snapshot(head) for head in range(state.heads)]
    assert not any(same(a, b) for a, b in zip(before, after, strict=True))
    assert any(x.status.registers.logged > 3 and x.status.registers.lost > 0 for x in before) == logs
    for head in range(state.heads):
        device.restore(head, before[head], through=free)
        assert same(device.snapshot(head), before[head]), modes[head]
    again = device.require(tokens(4, 2))
    assert [a.payload for a in answers] == [a.payload for a in again]
    for head in range(state.heads):
        assert same(device.snapshot(head), after[head]), modes[head]
        device.restore(head, empty[head], through=free)
    begun = device.require(tokens(6, 1))
    device.reset()
    for head, mode in enumerate(opening):
        device.open_state(head, mode)
    assert [a.payload for a in begun] == [a.payload for a in device.require(tokens(6, 1))]
    other, page = G.states - 1, sum(pages(state, head) for head in range(state.heads))
    for head in range(state.heads):  # on another slot and other pages
        assert same(device.snapshot(head), before[head])
        device.open_state(other, replace(state_mode(state, head, page), seed=1))
        device.restore(other, before[head], through=free)
        moved = device.snapshot(other)
        device.free_slot(other)
        assert moved.status.ages.tolist() == before[head].status.ages.tolist()
        assert moved.status.mode == replace(before[head].status.mode, first_page=page)
        assert (moved.keys, moved.values, moved.status.factors.tolist(), moved.status.registers) == (
            before[head].keys, before[head].values, before[head].status.factors.tolist(), before[head].status.registers)


def test_states_are_sent_and_set_between_commands_back_to_back(device: Device) -> None:
    """STATE and RESTORE among tokens, in one exchange: each sees what came before it and nothing of what follows."""
    device.reset()
    generator = torch.Generator().manual_seed(10)
    state = random_heads([Mode(rotate=False)] * 2, Rule(), True, generator)
    for head in (0, 1):
        device.open_state(head, state_mode(state, head, 6 * head))
    ask = [Request(opcode=Opcode.STATE, slot=head) for head in (0, 1)]
    given = [random_token(state, generator, frozen=0.0) for _ in range(3)]
    tokens = [[recur_request(head, state_token(state, one, state.scales, head)) for head in (0, 1)] for one in given]
    one = [device.require([request])[0].payload for request in (*ask, *tokens[0], *ask)]
    back = [Request(opcode=Opcode.RESTORE, slot=head, payload=payload) for head, payload in enumerate(one[4:])]
    steps = [*tokens[1], *ask, *back, *ask, *tokens[2], *ask, ask[0], back[0], ask[1], back[1], *ask]
    steps += [tokens[1][0], ask[0]]
    together = [answer.payload for answer in device.require(steps)]
    first = [device.snapshot(head) for head in (0, 1)]
    device.reset()
    for head in (0, 1):
        device.open_state(head, state_mode(state, head, 6 * head))
    assert [device.require([request])[0].payload for request in (*ask, *tokens[0], *ask)] == one
    assert [device.require([request])[0].payload for request in steps] == together
    assert together[6:8] == one[4:] != together[2:4]
    assert [device.snapshot(head).keys for head in (0, 1)] == [x.keys for x in first]


def test_snapshots_that_do_not_fit_change_nothing(device: Device) -> None:
    device.reset()
    generator = torch.Generator().manual_seed(9)
    state = random_heads([Mode(), Mode(storage=Storage.INT8)], Rule(delta=True), False, generator)
    device.open_state(0, state_mode(state, 0, 0))
    device.open_state(1, state_mode(state, 1, 3))
    device.open_slot(2)
    token = random_token(state, generator, frozen=0.0)
    for head in (0, 1):
        device.recur(head, state_token(state, token, state.scales, head))
    held, other = device.snapshot(0), device.snapshot(1)
    status, registers = held.status, held.status.registers
    with pytest.raises(StateModeError, match="of another mode"):
        device.restore(0, other, through=3)
    assert refused(lambda: device.require([restore_request(0, other.status)])) is Status.WRONG_KIND
    bad = [
        replace(status, registers=replace(registers, logged=1)),
        replace(status, registers=replace(registers, lost=1 << 12)),
        replace(status, factors=status.factors - (1 << 23)), replace(status, factors=status.factors + (1 << 24)),
        replace(status, registers=replace(registers, stored=2)),
        replace(status, registers=replace(registers, skipped=1 << 32)),
        replace(status, registers=replace(registers, rescaled=1 << 32)),
        replace(status, registers=replace(registers, energy=1 << 57)),
        replace(status, mode=replace(status.mode, seed=0)), replace(status, mode=replace(status.mode, interval=0)),
    ]
    for one in bad:
        assert refused(lambda one=one: device.require([restore_request(0, one)])) is Status.BAD_VALUE, one
        assert refused(lambda one=one: device.restore(0, replace(held, status=one), through=3)) in (
            Status.BAD_VALUE, Status.WRONG_KIND)
    whole = restore_request(0, status).payload
    for payload in (whole[:-16], whole + bytes(16), b""):
        request = Request(opcode=Opcode.RESTORE, slot=0, payload=payload)
        assert refused(lambda request=request: device.require([request])) is Status.BAD_LENGTH
    assert refused(lambda: device.require([restore_request(2, status)])) is Status.WRONG_KIND
    assert refused(lambda: device.require([restore_request(3, status)])) is Status.SLOT_CLOSED
    assert refused(lambda: device.restore(0, held, through=2)) is Status.SLOT_OPEN
    with pytest.raises(ValueError, match="bytes of rows"):
        device.restore(0, replace(held, keys=held.keys[:-16]), through=3)
    damaged = bytearray(restore_request(0, replace(status, registers=replace(registers, skipped=7))).encode(0, 8))
    damaged[40] ^= 1
    device.transport.exchange([bytes(damaged)], timeout=10.0)
    now = device.snapshot(0)
    assert (now.keys, now.values, encode_status(now.status)) == (held.keys, held.values, encode_status(status))
    device.open_slot(3)  # none was left open


def test_attention_and_states_take_turns(device: Device) -> None:
    """Rows of tokens beside a state, commands back to back: neither changes the other."""
    device.reset()
    generator = torch.Generator().manual_seed(5)
    rng = np.random.default_rng(5)
    state = random_heads([Mode(), Mode(storage=Storage.INT8)], Rule(delta=True), False, generator)
    golden = GoldenDevice(G)
    device.open_state(0, state_mode(state, 0, 0))
    device.open_state(1, state_mode(state, 1, 3))
    requests = [Request(opcode=Opcode.OPEN, slot=2), map_request(2, range(16, 24))]
    expected = [golden.answer(request).payload for request in requests]
    for count in range(1, 7):
        token = random_token(state, generator)
        o = integer.step(state, token).to(torch.int32).numpy()
        k, v, q = (rng.integers(-2000, 2000, (1, G.head_dim)).astype(np.int16) for _ in range(3))
        attention = [append_request(2, k, v), attend_request(2, q, [0], [count], 20)]
        recurrent = [recur_request(head, state_token(state, token, state.scales, head)) for head in (0, 1)]
        order = (attention[0], *recurrent, attention[1]) if count % 2 else (recurrent[0], *attention, recurrent[1])
        for request in order:
            requests.append(request)
            head = request.slot
            expected.append(golden.answer(request).payload if head == 2 else o[head].astype("<i4").tobytes())
    requests.append(Request(opcode=Opcode.READ_ROWS, slot=2, count=6))
    expected.append(golden.answer(requests[-1]).payload)
    answers = device.require(requests)
    assert [answer.payload for answer in answers] == expected


GOOD = StateMode(flags=StateFlag.DELTA | StateFlag.DECAY_FIRST | StateFlag.BONUS, feedback=16, shift=0, channels=16,
                 first_page=0)
BAD_MODES = [
    replace(GOOD, feedback=17), replace(GOOD, feedback=13), replace(GOOD, shift=16), replace(GOOD, channels=8),
    replace(GOOD, channels=20), replace(GOOD, channels=72), replace(GOOD, first_page=127), replace(GOOD, seed=0),
    replace(GOOD, interval=0), replace(GOOD, interval=129, channels=G.head_dim), replace(GOOD, interval=2),
    replace(GOOD, interval=128, channels=G.head_dim, first_page=61),
    replace(GOOD, interval=2, channels=G.head_dim, flags=GOOD.flags | StateFlag.LANE_DECAY),
    replace(GOOD, interval=2, channels=G.head_dim, flags=GOOD.flags | StateFlag.SUPPLIED),
    replace(GOOD, flags=GOOD.flags | StateFlag.RESIDUAL),
    replace(GOOD, flags=GOOD.flags | StateFlag.FRESH | StateFlag.SUPPLIED),
    replace(GOOD, flags=GOOD.flags | StateFlag.ROTATE | StateFlag.LANE_DECAY), replace(GOOD, flags=StateFlag(2048)),
    *(replace(GOOD, flags=GOOD.flags | StateFlag.HALVES | flag) for flag in (StateFlag.LANE_DECAY, StateFlag.SUPPLIED)),
    replace(GOOD, interval=2, channels=G.head_dim, flags=GOOD.flags | StateFlag.HALVES),
    replace(GOOD, flags=GOOD.flags | StateFlag.HALVES, first_page=125),
]


def refused(action: Any) -> Status:
    with pytest.raises(DeviceError) as caught:
        action()
    return caught.value.status


def test_modes_out_of_range_are_refused(device: Device) -> None:
    device.reset()
    for mode in BAD_MODES:
        assert refused(lambda mode=mode: device.require([open_state_request(0, mode)])) is Status.BAD_VALUE, mode
        assert refused(lambda mode=mode: device.open_state(0, mode)) is Status.BAD_VALUE, mode
    halves = replace(GOOD, interval=2, channels=G.head_dim, flags=GOOD.flags | StateFlag.HALVES)
    with pytest.raises(StateValueError, match="two halves is written back at every token"):
        device.open_state(0, halves)
    assert refused(lambda: device.open_state(G.states, GOOD)) is Status.BAD_FLAGS
    device.open_state(0, GOOD)


def test_tokens_out_of_range_leave_the_state_as_it_is(device: Device) -> None:
    device.reset()
    generator = torch.Generator().manual_seed(6)
    state = random_heads([Mode(rotate=False)], Rule(delta=True), False, generator)
    device.open_state(0, state_mode(state, 0, 0))
    device.open_slot(1)
    token, scales = random_token(state, generator, frozen=0.0), random_scales(state, generator)
    good = state_token(state, token, scales, 0)
    assert device.recur(0, good).tolist() == integer.step(state, token).tolist()[0]
    low = good.v.copy()
    low[3] = -32768
    bad = [replace(good, decay=0), replace(good, decay=(1 << 24) + 1), replace(good, beta=1 << 16),
           replace(good, v=low), replace(good, q=np.full_like(good.q, -32768))]
    for one in bad:
        assert refused(lambda one=one: device.recur(0, one)) is Status.BAD_VALUE
    assert refused(lambda: device.recur(0, replace(good, b=None))) is Status.BAD_LENGTH
    assert refused(lambda: device.recur(1, good)) is Status.WRONG_KIND
    assert refused(lambda: device.state(1)) is Status.WRONG_KIND
    assert refused(lambda: device.recur(2, good)) is Status.SLOT_CLOSED
    zeros = np.zeros((1, G.head_dim), np.int16)
    assert refused(lambda: device.append(0, zeros, zeros)) is Status.WRONG_KIND
    assert refused(lambda: device.attend(0, zeros, [0], [1], 0)) is Status.WRONG_KIND
    assert refused(lambda: device.truncate(0, 0)) is Status.WRONG_KIND
    damaged = bytearray(recur_request(0, good).encode(0, G.link_bytes))
    damaged[40] ^= 1
    device.transport.exchange([bytes(damaged)], timeout=10.0)
    assert device.recur(0, good).tolist() == integer.step(state, token).tolist()[0]


def test_a_full_log_is_refused_until_it_is_committed(device: Device) -> None:
    device.reset()
    generator = torch.Generator().manual_seed(7)
    state = random_heads([Mode(interval=2)], Rule(delta=True), False, generator, G.head_dim)
    device.open_state(0, state_mode(state, 0, 0))
    device.commit(0)
    for count in (2, 2, 1):
        for _ in range(count):
            token = random_token(state, generator, frozen=0.0)
            found = device.recur(0, state_token(state, token, state.scales, 0)).tolist()
            assert found == integer.step(state, token).tolist()[0]
        if count == 2:
            bad = state_token(state, random_token(state, generator), state.scales, 0)
            assert refused(lambda bad=bad: device.recur(0, bad)) is Status.FULL
        device.commit(0)
        integer.commit(state, torch.tensor([True]))
    assert device.state(0).mode.seed == int(state.noise[0])
    device.open_slot(1)
    assert refused(lambda: device.commit(1)) is Status.WRONG_KIND
    assert refused(lambda: device.commit(2)) is Status.SLOT_CLOSED
