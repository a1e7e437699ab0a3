"""Requests over a line that loses and damages: each is carried out once, in order, and nothing overruns the device."""

from __future__ import annotations

import random
from collections import deque

import pytest

from statecell.link.framing import FrameError, Request
from statecell.link.window import Parcel, Window, restore, strip
from statecell.spec import frame
from statecell.spec.commands import Opcode
from statecell.spec.serial import SHORTEST
from tests.link.fake_board import LINK, LINK_BYTES, FakeDevice

FIRST = frame.SEQUENCES - 20  # the numbers wrap on the way


def parcels(
    count: int, rng: random.Random, opcodes: tuple[Opcode, ...] = (Opcode.APPEND, Opcode.OPEN, Opcode.COUNTERS)
) -> list[Parcel]:
    """Requests of all sizes; `count` tells them apart."""
    out = []
    for number in range(count):
        sequence = (FIRST + number) % frame.SEQUENCES
        opcode = rng.choice(opcodes)
        payload = bytes(16 * rng.choice((0, 0, 4, 16, 80)) * (opcode is Opcode.APPEND))
        data = Request(opcode=opcode, count=number, payload=payload).encode(sequence, LINK_BYTES)
        size = SHORTEST + 64 * (opcode is Opcode.COUNTERS)
        out.append(Parcel(sequence=sequence, opcode=opcode, wire=strip(data, LINK_BYTES), answer_bytes=size))
    return out


def carry(device: FakeDevice, sent: list[Parcel], rng: random.Random, loss: float) -> Window:
    """Move frames until all is answered; a silence of the line is a time-out."""
    device.session, device.due = 1, FIRST
    window = Window(sent, LINK, LINK_BYTES)
    down: deque[bytes] = deque()
    up: deque[bytes] = deque()
    for _ in range(200_000):
        if window.done:
            return window
        down.extend(window.sendable())
        if down and rng.random() < 0.5:
            data = down.popleft()
            if rng.random() < loss:
                data = spoil(data, rng)
            answer = device.frame(data)
            if answer is not None:
                up.append(answer)
        elif up:
            data = up.popleft()
            try:
                padded, response = restore(spoil(data, rng) if rng.random() < loss else data, LINK_BYTES)
                window.take(padded, response)
            except FrameError:
                window.damaged()
        elif not down:
            window.rewind()
    raise AssertionError("no end")


def spoil(data: bytes, rng: random.Random) -> bytes:
    """A frame that lost a byte, got another, was cut, or has a wrong one."""
    at = rng.randrange(len(data))
    return rng.choice((
        data[:at] + data[at + 1 :], data[:at], data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
        b"", data[:at] + rng.randbytes(1) + data[at:],
    ))  # fmt: skip


@pytest.mark.parametrize("loss", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("seed", range(5))
def test_each_request_is_carried_out_once_and_in_order(seed: int, loss: float) -> None:
    rng = random.Random(f"{seed} {loss}")
    sent = parcels(60, rng)
    device = FakeDevice()
    window = carry(device, sent, rng, loss)
    assert device.applied == [(p.opcode, number) for number, p in enumerate(sent)]
    values = [restore(strip(data, LINK_BYTES), LINK_BYTES)[1].value for data in window.answers]
    assert values == list(range(1, 61))
    assert (window.repeats > 0) == (loss > 0)


def test_a_device_without_turns_is_found_out() -> None:
    rng = random.Random(3)
    sent = parcels(60, rng)
    device = FakeDevice(careless=True)
    carry(device, sent, rng, 0.2)
    assert device.applied != [(p.opcode, number) for number, p in enumerate(sent)]


def test_the_device_is_never_overrun() -> None:
    rng = random.Random(5)
    sent = parcels(200, rng)
    window = Window(sent, LINK, LINK_BYTES)
    unanswered: deque[Parcel] = deque()
    waiting = deque(sent)
    device = FakeDevice()
    device.session, device.due = 1, FIRST
    while not window.done:
        for wire in window.sendable():
            assert wire == waiting[0].wire
            unanswered.append(waiting.popleft())
            if len(unanswered) > 1:
                assert sum(len(p.wire) for p in unanswered) <= LINK.request_bytes
                assert sum(p.answer_bytes for p in unanswered) <= LINK.answer_bytes - SHORTEST
                assert len(unanswered) <= LINK.answers
        answer = device.frame(unanswered.popleft().wire)
        assert answer is not None
        assert window.take(*restore(answer, LINK_BYTES))
    assert not waiting and window.repeats == 0


def test_late_and_foreign_responses_are_ignored() -> None:
    device = FakeDevice()
    sent = parcels(2, random.Random(1), (Opcode.OPEN,))
    device.session, device.due = 1, FIRST
    window = Window(sent, LINK, LINK_BYTES)
    first, second = (device.frame(wire) for wire in window.sendable())
    assert first is not None and second is not None
    assert window.take(*restore(first, LINK_BYTES)) and not window.take(*restore(first, LINK_BYTES))
    other = parcels(40, random.Random(1))[30]
    device.due = other.sequence
    foreign = device.frame(other.wire)
    assert foreign is not None and not window.take(*restore(foreign, LINK_BYTES))
    assert not window.sendable() and window.take(*restore(second, LINK_BYTES)) and window.done
