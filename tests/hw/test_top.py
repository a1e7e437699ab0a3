from __future__ import annotations

import random
from dataclasses import astuple
from typing import Any

import numpy as np
import torch

from statecell.link.framing import Request, Response, decode
from statecell.model import integer
from statecell.model.rows import Rows, pack
from statecell.spec import frame
from statecell.spec.commands import INFO_FIELDS, Flag, Opcode, Status
from statecell.spec.geometry import config
from statecell_hw.control.responder import device_info
from statecell_hw.top import StateCell
from tests.hw.streams import no_collision, simulate, words_of

G = config("tiny")
BUILD = 0x0123456789ABCDEF


def exchange(frames: list[bytes], seed: int, unfinished: bytes = b"") -> list[bytes]:
    """Responses of a fresh device, with pauses on both sides; after the frames, the beginning of another."""
    dut = StateCell(G, build_hash=BUILD)
    answers: list[bytes] = []

    async def source(ctx: Any) -> None:
        rng = random.Random(seed)
        words = [word for data in frames for word in words_of(data, G.link_bytes)]
        words += [{**word, "last": 0} for word in words_of(unfinished, G.link_bytes)]
        for word in words:
            ctx.set(dut.i.payload, word)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)
            if rng.random() < 0.05:
                await ctx.tick().repeat(rng.randint(1, 9))

    async def sink(ctx: Any) -> None:
        rng = random.Random(seed + 1)
        data = b""
        while len(answers) < len(frames):
            ctx.set(dut.o.ready, rng.random() < 0.8)
            _, _, word, took = await ctx.tick().sample(dut.o.payload, dut.o.valid & dut.o.ready)
            if took:
                data += word.data.to_bytes(G.link_bytes, "little")
                if word.last:
                    answers.append(data)
                    data = b""

    banks = [no_collision(bank.memory) for tile in dut.tiles for bank in (tile.keys, tile.values)]
    simulate(dut, source, sink, background=banks, max_cycles=20_000)
    return answers


def vectors(rng: np.random.Generator, count: int) -> torch.Tensor:
    return torch.from_numpy(rng.integers(-3000, 3000, (count, G.head_dim)))


def as_bytes(x: torch.Tensor) -> bytes:
    return x.numpy().astype("<i2").tobytes()


def test_a_conversation_equals_the_integer_model() -> None:
    rng = np.random.default_rng(1)
    k, v, q = vectors(rng, 3), vectors(rng, 3), vectors(rng, G.lanes)
    keys = Rows.concatenate([integer.store(k[:1], G, wide=True), integer.store(k[1:], G)])
    values = Rows.concatenate([integer.store(v[:1], G, wide=True), integer.store(v[1:], G)])
    pairs = torch.stack([k, v], 1)
    start, end = torch.tensor([0, 2]), torch.tensor([4, 3])
    ranges = torch.stack([start, end], 1)
    slot, shift = 2, 20
    attend = Request(
        opcode=Opcode.ATTEND, slot=slot, count=G.lanes, shift=shift, payload=frame.pad(as_bytes(ranges)) + as_bytes(q)
    )
    pages = np.array([7, 3], "<u2").tobytes()
    requests = [
        Request(opcode=Opcode.INFO),
        Request(opcode=Opcode.OPEN, slot=slot),
        Request(opcode=Opcode.MAP, slot=slot, count=2, payload=frame.pad(pages)),
        Request(opcode=Opcode.APPEND, slot=slot, count=1, flags=Flag.WIDE, payload=as_bytes(pairs[:1])),
        Request(opcode=Opcode.APPEND, slot=slot, count=2, payload=as_bytes(pairs[1:])),
        attend,
        attend,
        Request(opcode=Opcode.READ_ROWS, slot=slot, first=1, count=3),
        Request(opcode=Opcode.TRUNCATE, slot=slot, count=3),
        attend,
    ]
    frames = [r.encode(i, G.link_bytes) for i, r in enumerate(requests)]
    # Inside a query: it must not survive, nor hold up the next command.
    frames.insert(6, frames[5][: -5 * G.link_bytes])
    answers = [decode(a, G.link_bytes) for a in exchange(frames, 5)]

    expected = integer.attend(q, keys, values, start, end, shift, G)
    result = as_bytes(expected.vectors) + frame.pad(bytes(expected.block.tolist()))
    raw_k, raw_v, size = pack(keys, G), pack(values, G), G.row_bytes
    rows = b"".join(raw_k[i * size :][:size] + raw_v[i * size :][:size] for i in range(1, 4))
    fields = np.array(astuple(device_info(G, BUILD)), "<u4").tobytes()

    def ok(index: int, value: int = 0, payload: bytes = b"") -> Response:
        r = requests[index]
        return Response(
            opcode=r.opcode, sequence=index, slot=r.slot, status=Status.OK, value=value, payload=payload
        )

    assert len(fields) == 4 * len(INFO_FIELDS)
    assert answers[:6] == [ok(0, 0, fields), ok(1), ok(2, 2), ok(3, 2), ok(4, 4), ok(5, 0, result)]
    assert (answers[6].status, answers[6].sequence) == (Status.BAD_FRAME, 5)
    assert answers[7:10] == [ok(6, 0, result), ok(7, 0, rows), ok(8, 3)]
    assert answers[10].status == Status.BAD_RANGE


def test_an_unfinished_frame_holds_up_no_response() -> None:
    rng = np.random.default_rng(2)
    k, v, q = vectors(rng, 1), vectors(rng, 1), vectors(rng, 1)
    ranges = torch.tensor([[0, 1]])
    payload = frame.pad(as_bytes(ranges)) + as_bytes(q)
    requests = [
        Request(opcode=Opcode.OPEN),
        Request(opcode=Opcode.MAP, count=1, payload=bytes(frame.BLOCK)),
        Request(opcode=Opcode.APPEND, count=1, payload=as_bytes(torch.stack([k, v], 1))),
        Request(opcode=Opcode.ATTEND, count=1, shift=20, payload=payload),
    ]
    frames = [r.encode(i, G.link_bytes) for i, r in enumerate(requests)]
    # The next ATTEND stops inside its query, while the results of this one want to pass the same rotation.
    answers = [decode(a, G.link_bytes) for a in exchange(frames, 6, unfinished=frames[3][: -4 * G.link_bytes])]
    keys, values = integer.store(k, G), integer.store(v, G)
    expected = integer.attend(q, keys, values, ranges[:, 0], ranges[:, 1], 20, G)
    assert answers[3].payload == as_bytes(expected.vectors) + frame.pad(bytes(expected.block.tolist()))
