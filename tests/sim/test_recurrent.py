"""Recurrent states on the Verilated device, through the driver, against the integer model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from statecell.device import (
    Device,
    DeviceError,
    StateModeError,
    StateToken,
    append_request,
    attend_request,
    map_request,
    outputs,
    recur_request,
    restore_request,
)
from statecell.link.framing import Request
from statecell.model.recurrent import integer
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, Rule, Scales, Storage
from statecell.model.recurrent.state import State, new_state
from statecell.model.rows import pack
from statecell.snapshot import StateSnapshot, encode_status
from statecell.spec.commands import Opcode, StateFlag, StateMode, Status
from statecell.spec.geometry import config
from statecell_sim.golden import GoldenDevice
from statecell_sim.simulator import open_transport
from tests.hw.recurrent.states import every_mode, random_scales, random_token

G = config("recur32")
CHANNELS = 24
ROUND = 40


@pytest.fixture
def device() -> Iterator[Device]:
    with Device(open_transport(G.name, timeout=30.0)) as found:
        yield found


def state_mode(state: State, head: int, first_page: int) -> StateMode:
    """A head of the model as OPEN has it, every token with b."""
    modes = state.modes
    flags = {
        StateFlag.DELTA: state.rule.delta, StateFlag.WIDE: modes.wide[head], StateFlag.RESIDUAL: modes.blind[head],
        StateFlag.FRESH: modes.fresh[head], StateFlag.SUPPLIED: modes.supplied[head],
        StateFlag.STOCHASTIC: modes.stochastic[head], StateFlag.ROTATE: modes.rotate[head],
        StateFlag.LANE_DECAY: state.factor.shape[1] > 1, StateFlag.DECAY_FIRST: state.rule.decay_first,
        StateFlag.BONUS: True,
    }
    total = StateFlag(sum(int(flag) for flag, on in flags.items() if on))
    return StateMode(flags=total, feedback=int(state.feedback[head]), shift=int(state.shift[head]),
                     channels=state.channels, first_page=first_page, interval=int(modes.interval[head]),
                     seed=int(state.noise[head]))


def state_token(state: State, token: Token, scales: torch.Tensor, head: int) -> StateToken:
    """One head's token as RECUR has it."""
    def vector(x: torch.Tensor) -> Any:
        return x[head].numpy().astype(np.int16)

    decay = token.decay[head].numpy()
    return StateToken(
        q=vector(token.q), k=vector(token.k), b=vector(token.b), v=vector(token.v), beta=int(token.beta[head]),
        decay=decay if len(decay) > 1 else int(decay[0]),
        scales=scales[head].numpy().astype(np.uint8) if bool(state.modes.supplied[head]) else None)


def random_heads(modes: list[Mode], rule: Rule, lane_decay: bool, generator: torch.Generator,
                 channels: int = CHANNELS) -> State:
    count = len(modes)
    return new_state(modes, rule, G, channels=channels, lane_decay=lane_decay,
                     feedback=torch.randint(0, 17, (count,), generator=generator),
                     shift=torch.randint(0, 4, (count,), generator=generator),
                     seed=torch.randint(1, 1 << 32, (count,), generator=generator))


def pages_of(state: State) -> list[int]:
    """Pages that each head takes, its log included."""
    logged = [2 * mode.interval if mode.interval > 1 else 0 for mode in state.modes.each]
    return [-(-(state.channels // (3 - mode.planes) + log) // G.page_rows)
            for mode, log in zip(state.modes.each, logged, strict=True)]


RULES = [(Rule(delta=True), False), (Rule(), False), (Rule(decay_first=False), True), (Rule(delta=True), True)]


@pytest.mark.parametrize(("rule", "lane_decay"), RULES)
def test_every_mode_equals_the_model(device: Device, rule: Rule, lane_decay: bool) -> None:
    compare(device, rule, lane_decay, tokens=40, seed=21)


LOGS = [Rule(delta=True), Rule(decay_first=False)]


@pytest.mark.parametrize("rule", LOGS)
def test_every_mode_with_a_log_equals_the_model(device: Device, rule: Rule) -> None:
    compare(device, rule, False, tokens=80, seed=22, modes=logging_modes())


def logging_modes() -> list[Mode]:
    """Modes whose scales the rows bring, with intervals from 1 to 40."""
    modes = [mode for mode in every_mode(True) if mode.scales != Scales.SUPPLIED]
    return [replace(mode, interval=(2, 5, 1, 40, 3, 8)[number % 6]) for number, mode in enumerate(modes[:10])]


def compare(device: Device, rule: Rule, lane_decay: bool, *, tokens: int, seed: int,
            modes: list[Mode] | None = None) -> None:
    """Tokens of heads in every mode, ROUND of them in one exchange, so that their rows follow each other, each full log
    committed, and every log now and then; then registers and raw rows.
    """
    device.reset()
    generator = torch.Generator().manual_seed(seed)
    logs, modes = modes is not None, modes or every_mode(not lane_decay)
    state = random_heads(modes, rule, lane_decay, generator, G.head_dim if logs else CHANNELS)
    sizes = pages_of(state)
    first = [sum(sizes[:head]) for head in range(state.heads)]
    for head in range(state.heads):
        device.open_state(head, state_mode(state, head, first[head]))
    for start in range(0, tokens, ROUND):
        requests: list[Request] = []
        expected: list[list[int]] = []
        for _ in range(min(ROUND, tokens - start)):
            token, scales = random_token(state, generator), random_scales(state, generator)
            requests += [recur_request(head, state_token(state, token, scales, head)) for head in range(state.heads)]
            expected += integer.step(state, token, scales=scales).tolist()
            if state.log is not None:
                due = integer.due(state) | (torch.rand(state.heads, generator=generator) < 0.03)
                requests += [Request(opcode=Opcode.COMMIT, slot=head) for head in range(state.heads) if due[head]]
                integer.commit(state, due)
        answers = [answer for request, answer in zip(requests, device.require(requests), strict=True)
                   if request.opcode == Opcode.RECUR]
        for number, (answer, o) in enumerate(zip(answers, expected, strict=True)):
            what = f"token {start + number // state.heads}, {modes[number % state.heads]}"
            assert outputs(answer).tolist() == o, what
    if state.log is not None:
        device.require([Request(opcode=Opcode.COMMIT, slot=head) for head in range(state.heads)])
        integer.commit(state, torch.ones(state.heads, dtype=torch.bool))
    for head in range(state.heads):
        status, registers = device.state(head), device.state(head).registers
        assert status.mode == state_mode(state, head, first[head])
        assert status.factors.tolist() == state.factor[head].tolist()
        assert (registers.skipped, registers.rescaled, registers.energy) == tuple(
            int(x[head]) for x in (state.skipped, state.rescaled, state.energy()))
        rows = state.channels // (3 - modes[head].planes)
        keys, values = device.read_rows(head, 0, rows)
        raw = pack(state.rows(head), G)
        pairs = [raw[at:at + G.row_bytes] for at in range(0, len(raw), G.row_bytes)]
        even, odd = b"".join(pairs[::2]), b"".join(pairs[1::2])
        assert (keys, values) == ((odd, even) if modes[head].planes == 2 else (even, odd)), modes[head]
    assert int(state.skipped.min()) > 0


@pytest.mark.parametrize(("rule", "lane_decay"), RULES)
def test_snapshots_of_every_mode_come_back_bit_for_bit(device: Device, rule: Rule, lane_decay: bool) -> None:
    """Tokens after a snapshot, back to it, the same tokens again; then the snapshot in a slot of its own."""
    device.reset()
    generator = torch.Generator().manual_seed(8)
    modes = every_mode(not lane_decay)[::2][:8]
    state = random_heads(modes, rule, lane_decay, generator)
    sizes = pages_of(state)
    first = [sum(sizes[:head]) for head in range(state.heads)]
    for head in range(state.heads):
        device.open_state(head, state_mode(state, head, first[head]))

    def tokens(count: int, seed: int) -> list[Request]:
        mine = torch.Generator().manual_seed(seed)
        return [recur_request(head, state_token(state, token, scales, head))
                for token, scales in [(random_token(state, mine), random_scales(state, mine)) for _ in range(count)]
                for head in range(state.heads)]

    def same(a: StateSnapshot, b: StateSnapshot) -> bool:
        return encode_status(a.status) == encode_status(b.status) and (a.keys, a.values) == (b.keys, b.values)

    free = G.slots - 1
    empty = [device.snapshot(head) for head in range(state.heads)]
    device.require(tokens(6, 1))
    before = [device.snapshot(head) for head in range(state.heads)]
    answers = device.require(tokens(4, 2))
    after = [device.snapshot(head) for head in range(state.heads)]
    assert not any(same(a, b) for a, b in zip(before, after, strict=True))
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
    for head in range(state.heads):
        device.open_state(head, state_mode(state, head, first[head]))
    assert [a.payload for a in begun] == [a.payload for a in device.require(tokens(6, 1))]
    other, page = G.states - 1, sum(sizes)
    for head in range(state.heads):  # on another slot and other pages
        assert same(device.snapshot(head), before[head])
        device.open_state(other, replace(state_mode(state, head, page), seed=1))
        device.restore(other, before[head], through=free)
        moved = device.snapshot(other)
        device.free_slot(other)
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
    replace(GOOD, flags=GOOD.flags | StateFlag.ROTATE | StateFlag.LANE_DECAY), replace(GOOD, flags=StateFlag(1024)),
]


def refused(action: Any) -> Status:
    with pytest.raises(DeviceError) as caught:
        action()
    return caught.value.status


def test_modes_out_of_range_are_refused(device: Device) -> None:
    device.reset()
    for mode in BAD_MODES:
        assert refused(lambda mode=mode: device.open_state(0, mode)) is Status.BAD_VALUE, mode
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
        assert refused(lambda: device.state(0)) is Status.LOGGED
        device.commit(0)
        integer.commit(state, torch.tensor([True]))
    assert device.state(0).mode.seed == int(state.noise[0])
    device.open_slot(1)
    assert refused(lambda: device.commit(1)) is Status.WRONG_KIND
    assert refused(lambda: device.commit(2)) is Status.SLOT_CLOSED
