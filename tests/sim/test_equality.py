"""The Verilated device against the golden device: every response, every bit, under random traffic and pauses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from statecell.link.framing import Request, decode
from statecell.model.rows import pack
from statecell.spec import formats, frame
from statecell.spec.commands import Flag, Opcode, Status
from statecell.spec.geometry import config
from statecell_hw.small.program import row_cycles, vector_cycles
from statecell_sim.golden import Answer, GoldenDevice
from statecell_sim.simulator import NO_PAUSES, Pauses, Simulator, library_of
from tests.sim.commands import Traffic, damaged

MAX_CYCLES = 2_000_000
PAUSES = {
    "flowing": (NO_PAUSES, NO_PAUSES),
    "idle": (Pauses(probability=0.5, seed=1), NO_PAUSES),
    "back-pressure": (NO_PAUSES, Pauses(probability=0.5, seed=2)),
    "both": (Pauses(probability=0.3, seed=3), Pauses(pattern="1110", seed=4)),
}


def run_traffic(name: str, pauses: tuple[Pauses, Pauses], seed: int, requests: int, batch: int) -> int:
    """Random traffic, one frame in twenty damaged; fails on the first response that differs. Returns the passes run."""
    g = config(name)
    golden = GoldenDevice(g)
    traffic = Traffic(golden, seed)
    simulator = Simulator(library_of(name), idle=pauses[0], stall=pauses[1])
    passes = 0
    for first in range(0, requests, batch):
        frames: list[bytes] = []
        expected: list[tuple[int, Answer | None]] = []
        for sequence in range(first, first + batch):
            request = traffic.next()
            data = request.encode(sequence, g.link_bytes)
            if traffic.rng.random() < 0.05:
                data = damaged(data, g.link_bytes, traffic.rng)
                expected.append((sequence, None))
            else:
                expected.append((sequence, golden.answer(request)))
            frames.append(data)
        for data, back, (sequence, answer) in zip(
            frames, simulator.exchange(frames, max_cycles=MAX_CYCLES).frames, expected, strict=True
        ):
            response = decode(back, g.link_bytes)
            if answer is None:
                assert response.status in (Status.BAD_FRAME, Status.BAD_CRC)
                assert response.sequence == (sequence if len(data) >= frame.BLOCK else 0xFFFF)
                continue
            where = f"{name}, seed {seed}, request {sequence}"
            got = (response.sequence, response.status, response.value)
            assert got == (sequence, answer.status, answer.value), where
            assert answer.payload is None or response.payload == answer.payload, where
            passes += (response.opcode, response.status) == (Opcode.ATTEND, Status.OK)
    simulator.close()
    return passes


@pytest.mark.parametrize("pauses", PAUSES)
@pytest.mark.parametrize("name", ["tiny", "tiny2"])
def test_random_traffic(name: str, pauses: str) -> None:
    passes = run_traffic(name, PAUSES[pauses], seed=7, requests=1040, batch=16)
    assert passes >= 150  # 8 such runs and the two-byte link: well over 1,000 passes


@pytest.mark.parametrize("name", ["narrow", "wide128"])
def test_other_shapes(name: str) -> None:
    """A two-byte link with one query lane; head dimension 128."""
    assert run_traffic(name, PAUSES["both"], seed=8, requests=480, batch=8) > 100


@pytest.mark.parametrize("pauses", ["flowing", "both"])
def test_the_small_device(pauses: str) -> None:
    assert run_traffic("icebreaker", PAUSES[pauses], seed=9, requests=1600, batch=16) > 250


@pytest.mark.parametrize("name", ["tiny", "icebreaker"])
@pytest.mark.parametrize("constant", ["LOOKAHEAD", "CANDIDATES"])
def test_a_mutant_model_is_caught(constant: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library_of(name)  # with the true constants
    monkeypatch.setattr(formats, constant, 1)
    with pytest.raises(AssertionError, match="request"):
        run_traffic(name, PAUSES["flowing"], seed=7, requests=1600, batch=16)


def test_long_passes() -> None:
    """Head dimension 64, three queries, 1 to 1,500 rows: more than 100,000 row-query products."""
    g = config("smollm2")
    golden = GoldenDevice(g)
    simulator = Simulator(library_of("smollm2"))
    rng = np.random.default_rng(11)

    def exchange(requests: list[Request]) -> None:
        frames = [r.encode(i, g.link_bytes) for i, r in enumerate(requests)]
        for r, back in zip(requests, simulator.exchange(frames, max_cycles=MAX_CYCLES).frames, strict=True):
            answer, response = golden.answer(r), decode(back, g.link_bytes)
            assert (response.status, response.value) == (Status.OK, answer.value)
            assert response.payload == answer.payload, f"ATTEND over rows {r.payload[:16].hex()}"

    pages = rng.permutation(g.pages)[:94].astype("<u2")
    tokens = rng.normal(0, 4000, (1500, 2, 64)).clip(-32767, 32767).astype("<i2")
    tokens[:, 0, 5] += 6000
    exchange([Request(opcode=Opcode.OPEN), Request(opcode=Opcode.MAP, count=94, payload=frame.pad(pages.tobytes()))])
    exchange([Request(opcode=Opcode.APPEND, count=50, payload=tokens[i:i + 50].tobytes()) for i in range(0, 1500, 50)])
    keys, values = golden.rows(0, 0, 1500)
    assert len(pack(keys, g)) == len(pack(values, g)) == 1500 * g.row_bytes
    passes = []
    for length in [1, 15, 16, 17, 1500, *rng.integers(2, 1500, 100)]:
        ends = np.sort(rng.integers(1, length + 1, 3))
        ends[-1] = length
        bounds = np.stack([np.zeros(3), ends], 1).astype("<u2")
        q = rng.normal(0, 6000, (3, 64)).clip(-32767, 32767).astype("<i2")
        passes.append(Request(opcode=Opcode.ATTEND, count=3, shift=int(rng.integers(24, 29)),
                              payload=frame.pad(bounds.tobytes()) + q.tobytes()))
    exchange(passes)
    assert golden.passes == len(passes) and golden.products >= 100_000
    simulator.close()


def test_the_small_device_holds_a_whole_context() -> None:
    """128 tokens in each slot, the first in two planes, as 4 layers of 2 KV heads need; and a slot to its end."""
    g = config("icebreaker")
    golden, simulator = GoldenDevice(g), Simulator(library_of(g.name))
    rng = np.random.default_rng(13)
    pages = rng.permutation(g.pages).reshape(g.slots, -1).astype("<u2")
    requests = []

    def append(slot: int, count: int, flags: int = 0) -> None:
        tokens = rng.normal(0, 4000, (count, 2, g.head_dim)).clip(-32767, 32767).astype("<i2")
        requests.append(Request(opcode=Opcode.APPEND, slot=slot, count=count, flags=flags, payload=tokens.tobytes()))

    def attend(slot: int, bounds: list[list[int]]) -> None:
        q = rng.normal(0, 6000, (len(bounds), g.head_dim)).clip(-32767, 32767).astype("<i2")
        ranges = frame.pad(np.array(bounds, "<u2").tobytes())
        requests.append(Request(opcode=Opcode.ATTEND, slot=slot, count=len(bounds), shift=int(rng.integers(22, 28)),
                                payload=ranges + q.tobytes()))

    for slot in range(g.slots):
        requests.append(Request(opcode=Opcode.OPEN, slot=slot))
        requests.append(Request(opcode=Opcode.MAP, slot=slot, count=g.pages_per_slot, payload=pages[slot].tobytes()))
        append(slot, 1, Flag.WIDE)
        append(slot, 127)
        attend(slot, [[0, 129], [0, 128]])
    append(0, g.slot_rows - 129)
    append(0, 1)  # no room
    attend(0, [[0, g.slot_rows], [0, 2]])
    attend(0, [[g.slot_rows - 1, g.slot_rows]])
    for number, request in enumerate(requests):
        (back,) = simulator.exchange([request.encode(number, g.link_bytes)], max_cycles=MAX_CYCLES).frames
        answer, response = golden.answer(request), decode(back, g.link_bytes)
        assert (response.status, response.value, response.payload) == (answer.status, answer.value, answer.payload)
    assert golden.passes == g.slots + 2
    simulator.close()


def test_the_small_device_takes_the_stated_cycles() -> None:
    """A row and query of a pass, and a vector of an APPEND, in rows that do not raise the maximum."""
    g = config("icebreaker")
    simulator = Simulator(library_of(g.name))
    token = np.random.default_rng(14).normal(0, 4000, (1, 2, g.head_dim)).astype("<i2")

    def cycles(request: Request) -> int:
        before = simulator.cycles
        (back,) = simulator.exchange([request.encode(0, g.link_bytes)], max_cycles=MAX_CYCLES).frames
        assert decode(back, g.link_bytes).status is Status.OK
        return simulator.cycles - before

    pages = np.arange(g.pages_per_slot, dtype="<u2").tobytes()
    cycles(Request(opcode=Opcode.OPEN))
    cycles(Request(opcode=Opcode.MAP, count=g.pages_per_slot, payload=pages))
    one, many = (
        cycles(Request(opcode=Opcode.APPEND, count=n, payload=np.repeat(token, n, 0).tobytes())) for n in (1, 101)
    )
    assert 0.5 * vector_cycles(g) < (many - one) / 200 < vector_cycles(g)
    for queries in (1, 2):
        passes = [
            cycles(Request(
                opcode=Opcode.ATTEND, count=queries, shift=25,
                payload=frame.pad(np.array([[0, n]] * queries, "<u2").tobytes()) + token[0, :1].tobytes() * queries,
            ))
            for n in (2, 102)
        ]
        assert 0.9 * row_cycles(g) < (passes[1] - passes[0]) / (100 * queries) <= row_cycles(g)
    simulator.close()


def test_golden_softmax_is_not_flat() -> None:
    """The long passes weigh rows unequally; equal weights would hide an error in the softmax."""
    from statecell.model import integer

    g = config("smollm2")
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(40, 64, generator=generator) * 4000).long()
    keys, values = integer.store(x, g), integer.store(x.flip(0), g)
    start, end = torch.zeros(1).long(), torch.tensor([40])
    sharp = integer.attend(x[:1], keys, values, start, end, 26, g).values(g)
    flat = integer.attend(x[:1], keys, values, start, end, 60, g).values(g)
    assert float((sharp - flat).norm() / flat.norm()) > 0.5
