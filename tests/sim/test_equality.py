"""The Verilated device against the golden device: every response, every bit, under random traffic and pauses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from statecell.link.framing import Request, decode
from statecell.model.rows import pack
from statecell.spec import formats, frame
from statecell.spec.commands import Opcode, Status
from statecell.spec.geometry import config
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


@pytest.mark.parametrize("constant", ["LOOKAHEAD", "CANDIDATES"])
def test_a_mutant_model_is_caught(constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, constant, 1)
    with pytest.raises(AssertionError, match="request"):
        run_traffic("tiny", PAUSES["flowing"], seed=7, requests=640, batch=16)


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
