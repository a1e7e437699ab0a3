"""The driver on the Verilated device: results, refusals in one sentence, and whatever bytes a broken host may send."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from statecell import device as driver
from statecell.device import ArrayFullError, Device, DeviceError, RowRangeError, SlotError, UnsupportedFormatError
from statecell.errors import StatecellError
from statecell.link import framing
from statecell.link.errors import LinkError, LinkTimeout, SpecificationMismatch
from statecell.link.framing import FrameError, Request, decode
from statecell.model import integer
from statecell.model.rows import pack
from statecell.runtime.device_engine import DeviceEngine
from statecell.runtime.engine import Append, Attend
from statecell.runtime.model_engine import ModelEngine
from statecell.spec import frame
from statecell.spec.commands import Opcode, Status
from statecell.spec.geometry import config
from statecell_sim.golden import Answer, GoldenDevice
from statecell_sim.simulator import SimTransport, Simulator, library_of

G = config("tiny")
MAX_CYCLES = 1_000_000


def ints(seed: int, count: int, spread: float = 5000) -> NDArray[np.int16]:
    x = np.random.default_rng(seed).normal(0, spread, (count, G.head_dim))
    return x.clip(-32767, 32767).astype(np.int16)


@pytest.fixture
def device() -> Iterator[Device]:
    with Device.open("sim:tiny", timeout=20) as opened:
        yield opened


def test_append_attend_read(device: Device) -> None:
    k, v, q = ints(1, 5), ints(2, 5), ints(3, 2)
    device.open_slot(1)
    assert device.map_pages(1, [7, 3]) == 2
    assert device.append(1, k, v) == 5
    answer = device.attend(1, torch.from_numpy(q), [0, 2], [5, 4], 26)
    keys, values = (integer.store(torch.from_numpy(x).long(), G) for x in (k, v))
    start, end = torch.tensor([0, 2]), torch.tensor([5, 4])
    expected = integer.attend(torch.from_numpy(q).long(), keys, values, start, end, 26, G)
    assert answer.out.tolist() == expected.vectors.tolist() and answer.block.tolist() == expected.block.tolist()
    assert device.read_rows(1, 0, 5) == (pack(keys, G), pack(values, G))
    counted = device.counters(clear=True)
    assert (counted.passes, counted.key_rows, counted.value_rows, counted.rows_written) == (1, 5, 5, 10)
    assert device.counters().rows_written == 0 and counted.stalls == 0


def test_info_is_the_configuration(device: Device) -> None:
    assert dataclasses.replace(device.geometry, name="tiny") == G


def test_snapshot_moves_to_other_pages(device: Device) -> None:
    device.open_slot(0)
    device.map_pages(0, [0, 1])
    device.append(0, ints(4, 3), ints(5, 3), wide=True)
    before = device.attend(0, ints(6, 1), [0], [6], 25)
    keys, values = device.read_rows(0, 0, 6)
    device.free_slot(0)
    device.open_slot(2)
    device.map_pages(2, [9, 4])
    assert device.write_rows(2, keys, values) == 6
    after = device.attend(2, ints(6, 1), [0], [6], 25)
    assert after.out.tolist() == before.out.tolist()


REFUSALS: dict[str, tuple[Callable[[Device], object], type[DeviceError], str]] = {
    "no such slot": (lambda d: d.open_slot(G.slots), SlotError, "BAD_SLOT"),
    "closed slot": (lambda d: d.append(2, ints(1, 1), ints(1, 1)), SlotError, "SLOT_CLOSED"),
    "open twice": (lambda d: d.open_slot(0), SlotError, "SLOT_OPEN"),
    "full": (lambda d: d.append(0, ints(1, 6), ints(1, 6)), ArrayFullError, "FULL"),
    "no such page": (lambda d: d.map_pages(0, [G.pages]), ArrayFullError, "BAD_PAGE"),
    "too many pages": (lambda d: d.map_pages(0, list(range(G.pages_per_slot))), ArrayFullError, "FULL"),
    "beyond the rows": (lambda d: d.attend(0, ints(1, 1), [0], [4], 20), RowRangeError, "BAD_RANGE"),
    "empty range": (lambda d: d.attend(0, ints(1, 1), [1], [1], 20), RowRangeError, "BAD_RANGE"),
    "too many queries": (lambda d: d.attend(0, ints(1, 3), [0] * 3, [1] * 3, 20), RowRangeError, "BAD_COUNT"),
    "read beyond": (lambda d: d.read_rows(0, 2, 2), RowRangeError, "BAD_RANGE"),
    "keep too many": (lambda d: d.truncate(0, 9), RowRangeError, "BAD_RANGE"),
    "no zero points": (
        lambda d: d.append(0, ints(1, 1), ints(1, 1), zero_point=True), UnsupportedFormatError, "BAD_FLAGS"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_reason_and_change_nothing(device: Device, case: str) -> None:
    act, error, status = REFUSALS[case]
    device.open_slot(0)
    device.map_pages(0, [5])
    device.append(0, ints(7, 3), ints(8, 3))
    before = device.read_rows(0, 0, 3)
    with pytest.raises(error, match=status) as raised:
        act(device)
    assert "\n" not in str(raised.value)
    assert device.read_rows(0, 0, 3) == before
    assert device.append(0, ints(9, 1), ints(9, 1)) == 4, "the device must take the next command"


def test_attend_on_an_empty_slot(device: Device) -> None:
    device.open_slot(3)
    with pytest.raises(RowRangeError):
        device.attend(3, ints(1, 1), [0], [1], 20)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda d, q: d.attend(0, q, [0, 0], [65_541, 65_540], 24), "end is .* 2 whole numbers from 0 to 65535"),
        (lambda d, q: d.attend(0, q, [0.5, 0], [1, 1], 24), "start is .* one for each query"),
        (lambda d, q: d.attend(0, q, None, [1, 1], 24), "start is None"),
        (lambda d, q: d.attend(0, q, [0, 0, 0], [1, 1, 1], 24), "start is"),
        (lambda d, q: d.attend(0, q, [0, 0], [1, 1], -1), "shift is -1; it must be a whole number from 0 to 255"),
        (lambda d, q: d.map_pages(0, [-1]), "pages is .* one for each page"),
        (lambda d, q: d.map_pages(0, None), "pages is None"),
        (lambda d, q: d.open_slot(0.5), "slot is 0.5; it must be a whole number"),
        (lambda d, q: d.truncate(0, -1), "count is -1"),
    ],
)
def test_numbers_that_no_frame_can_hold(device: Device, call: Any, match: str) -> None:
    q = np.zeros((2, device.geometry.head_dim), np.int16)
    with pytest.raises(ValueError, match=match):
        call(device, q)
    device.counters()  # the device answers the next command


@pytest.mark.parametrize(
    "vectors", [np.zeros((2, 64), np.int16), np.zeros((2, 32), np.float32), np.zeros(32, np.int16), [[1] * 32]]
)
def test_wrong_dtype_or_shape(device: Device, vectors: object) -> None:
    device.open_slot(0)
    with pytest.raises(ValueError, match=r"takes int16 \[n, 32\]"):
        device.attend(0, vectors, [0], [1], 20)


@pytest.mark.parametrize("url", ["usb:1", "tiny", "", "sim:huge", "sim:tiny?colour=red"])
def test_bad_addresses(url: str) -> None:
    with pytest.raises(LinkError) as raised:
        Device.open(url)
    assert "\n" not in str(raised.value)


def test_specification_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "fingerprint", lambda: 1)
    with pytest.raises(SpecificationMismatch, match="fingerprint"):
        Device.open("sim:tiny")


class Meddler:
    """A transport that alters frames on their way, for the driver's own checks."""

    def __init__(self, inner: SimTransport) -> None:
        self.inner, self.link_bytes = inner, inner.link_bytes
        self.request: Callable[[bytes], bytes] = bytes
        self.response: Callable[[bytes], bytes] = bytes

    def exchange(self, frames: Sequence[bytes], *, timeout: float) -> list[bytes]:
        return [self.response(f) for f in self.inner.exchange([self.request(f) for f in frames], timeout=timeout)]

    def close(self) -> None:
        self.inner.close()


def flipped(data: bytes) -> bytes:
    return data[:17] + bytes([data[17] ^ 4]) + data[18:]


def test_damage_on_the_link_is_found_on_both_sides() -> None:
    meddler = Meddler(SimTransport(Simulator(library_of("tiny"))))
    with Device(meddler) as device:
        device.open_slot(0)
        device.map_pages(0, [0])
        meddler.request = flipped
        with pytest.raises(driver.ProtocolError, match="BAD_CRC"):
            device.append(0, ints(1, 1), ints(2, 1))
        meddler.request, meddler.response = bytes, flipped
        with pytest.raises(FrameError, match="CRC"):
            device.counters()
        meddler.response = bytes
        assert device.append(0, ints(1, 1), ints(2, 1)) == 1


def test_silence_ends_in_a_time_out() -> None:
    simulator = Simulator(library_of("tiny"))
    with pytest.raises(LinkTimeout):
        simulator.exchange([], responses=1, max_cycles=1000)
    request = Request(opcode=Opcode.INFO).encode(0, G.link_bytes)
    assert decode(simulator.exchange([request], max_cycles=1000).frames[0], G.link_bytes).status is Status.OK
    simulator.close()


FIELDS = st.fixed_dictionaries({
    "version": st.sampled_from([frame.VERSION] * 9 + [0, 0xC2]),
    "opcode": st.one_of(st.sampled_from([int(o) for o in Opcode]), st.integers(0, 255)),
    "slot": st.one_of(st.integers(0, G.slots - 1), st.integers(0, 65535)),
    "count": st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)),
    "first": st.one_of(st.integers(0, 9), st.integers(0, 65535)),
    "shift": st.integers(0, 255),
    "flags": st.sampled_from([0, 0, 0, 1, 2, 3, 255]),
})
DAMAGE = st.sampled_from(["sound"] * 4 + ["blocks", "crc", "cut", "long"])
FRAMES = st.lists(st.tuples(FIELDS, st.binary(max_size=320), DAMAGE), max_size=12)


def encode(fields: dict[str, int], payload: bytes, damage: str, link_bytes: int) -> bytes:
    payload = frame.pad(payload)
    blocks = len(payload) // frame.BLOCK + (3 if damage == "blocks" else 0)
    header = frame.pack_header(frame.REQUEST_HEADER, sequence=5, blocks=blocks, **fields)
    data = frame.seal(header + payload, link_bytes)
    if damage == "crc":
        return flipped(data)
    return data[:link_bytes] if damage == "cut" else data + bytes(link_bytes) if damage == "long" else data


@pytest.mark.parametrize("name", ["tiny", "icebreaker"])
@given(frames=FRAMES)
@settings(derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_frame_gets_one_answer_and_the_right_one(
    name: str, frames: list[tuple[dict[str, int], bytes, str]]
) -> None:
    simulator = SHARED.get(name) or Simulator(library_of(name))
    SHARED[name] = simulator
    g = config(name)
    golden = GoldenDevice(g)
    sound = [Request(opcode=Opcode.RESET), Request(opcode=Opcode.OPEN, slot=0),
             Request(opcode=Opcode.MAP, slot=0, count=2, payload=frame.pad(b"\x03\x00\x08\x00")),
             Request(opcode=Opcode.APPEND, slot=0, count=2, payload=np.stack([ints(1, 2), ints(2, 2)], 1).tobytes())]
    expected: list[Answer | None] = [golden.answer(r) for r in sound]
    sent = [r.encode(5, g.link_bytes) for r in sound]
    for fields, payload, damage in frames:
        sent.append(encode(fields, payload, damage, g.link_bytes))
        fine = damage == "sound" and fields["version"] == frame.VERSION
        rest = {name: value for name, value in fields.items() if name not in ("version", "opcode")}
        request = Request(opcode=fields["opcode"], payload=frame.pad(payload), **rest)  # type: ignore[arg-type]
        expected.append(golden.answer(request) if fine else None)
    sound_end = Request(opcode=Opcode.INFO).encode(5, g.link_bytes)
    back = simulator.exchange([*sent, sound_end], max_cycles=MAX_CYCLES).frames
    for answer, data in zip(expected, back, strict=False):
        response = decode(data, g.link_bytes)
        if answer is None:
            assert response.status in (Status.BAD_FRAME, Status.BAD_VERSION, Status.BAD_CRC)
        else:
            assert (response.status, response.value) == (answer.status, answer.value)
            assert answer.payload is None or response.payload == answer.payload
    assert decode(back[-1], g.link_bytes).status is Status.OK


SHARED: dict[str, Simulator] = {}


# -- the engine --------------------------------------------------------------------------------------------------------
def test_engine_equals_the_model_and_reuses_pages() -> None:
    engine, model = DeviceEngine(Device.open("sim:tiny")), ModelEngine(G)
    rng = np.random.default_rng(12)
    for _ in range(6):
        slots, twins = engine.open_slots(2), model.open_slots(2)
        for slot, twin in zip(slots, twins, strict=True):
            for tokens, wide in ((1, True), (9, False), (2, True), (3, False)):
                k, v = ints(int(rng.integers(1000)), tokens), ints(int(rng.integers(1000)), tokens)
                q = ints(int(rng.integers(1000)), 5)
                held = engine.length(slot) + tokens
                end = rng.integers(1, held + 1, 5)
                results = [
                    e.run([Append(slot=s, k=k, v=v, wide=wide),
                           Attend(slot=s, q=q, start=np.zeros(5, np.int64), end=end, shift=25)])[1]
                    for e, s in ((engine, slot), (model, twin))
                ]
                assert results[0] is not None and results[1] is not None
                assert (results[0].out == results[1].out).all() and (results[0].exponent == results[1].exponent).all()
            engine.truncate(slot, 4)
            model.truncate(twin, 4)
        assert engine.counters().key_rows == model.counters().key_rows
        engine.free_slots(slots)
        model.free_slots(twins)
    engine.close()


def test_engine_refuses_what_does_not_fit_before_sending_anything() -> None:
    engine = DeviceEngine(Device.open("sim:tiny"))
    first, second = engine.open_slots(2)
    engine.run([Append(slot=first, k=ints(1, 30), v=ints(2, 30))])
    written = engine.counters().rows_written
    with pytest.raises(ArrayFullError, match="longest|holds at most|full"):
        engine.run([Append(slot=second, k=ints(1, 2), v=ints(1, 2)), Append(slot=first, k=ints(3, 40), v=ints(4, 40))])
    assert engine.counters().rows_written == written and engine.length(second) == 0
    with pytest.raises(StatecellError, match="slots"):
        engine.open_slots(G.slots)
    engine.run([Append(slot=second, k=ints(1, 2), v=ints(1, 2))])
    engine.close()
