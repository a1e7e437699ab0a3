from __future__ import annotations

import random
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from statecell.link.framing import decode
from statecell.spec import frame
from statecell.spec.commands import COUNTER_FIELDS, INFO_FIELDS, Info, Opcode
from statecell.spec.geometry import MAX_LANES, config
from statecell_hw.control.counters import Counters
from statecell_hw.control.responder import Answer, Responder
from statecell_hw.link.framer import Framer
from tests.hw.streams import receive, send, simulate, words_of

INFO = Info(**{name: 0x01020304 * (i + 1) for i, name in enumerate(INFO_FIELDS)})
COUNTERS = [0x1111_2222_3333_4444 * (i + 1) % (1 << 64) for i in range(len(COUNTER_FIELDS))]


@pytest.mark.parametrize("pause", [0.0, 0.3])
@pytest.mark.parametrize("name", ["tiny", "tiny2", "narrow", "recur32"])
def test_answers_in_order_with_the_right_payload(name: str, pause: float) -> None:
    g = config(name)
    rng = random.Random(18)
    m = Module()
    m.submodules.dut = dut = Responder(g, info=INFO)
    m.submodules.framer = framer = Framer(g)
    wiring.connect(m, dut.o, framer.i)
    completions: list[dict[str, Any]] = []
    vectors: list[dict[str, int]] = []
    rows: list[int] = []
    outputs: list[int] = []
    states: list[int] = []
    known = [a for a in Answer if g.states or a not in (Answer.OUTPUTS, Answer.STATE)]
    payloads: list[bytes] = []
    answers = [Answer.VECTORS, *(rng.choice(known) for _ in range(15)), Answer.VECTORS]
    for index, answer in enumerate(answers):
        lanes, payload = rng.randint(1, g.lanes), b""
        if answer == Answer.INFO:
            payload = np.array(astuple(INFO), "<u4").tobytes()
        elif answer == Answer.COUNTERS:
            payload = np.array(COUNTERS, "<u8").tobytes()
        elif answer == Answer.ROWS:
            payload = rng.randbytes(2 * g.row_bytes * rng.randint(1, 3))
            rows += [w["data"] for w in words_of(payload, g.link_bytes)]
        elif answer == Answer.OUTPUTS:
            payload = rng.randbytes(16 * rng.randint(4, 6))
            outputs += [w["data"] for w in words_of(payload, g.link_bytes)]
        elif answer == Answer.STATE:
            payload = rng.randbytes(16 * rng.randint(4, 6))
            states += [w["data"] for w in words_of(payload, g.link_bytes)]
        elif answer == Answer.VECTORS:
            blocks = [rng.randrange(12) for _ in range(lanes)]
            for block in blocks:
                vector = rng.randbytes(2 * g.head_dim)
                vectors += [{"data": w["data"], "block": block} for w in words_of(vector, g.link_bytes)]
                payload += vector
            payload += bytes(blocks).ljust(MAX_LANES, b"\0")
        header = {
            "opcode": Opcode.INFO | frame.RESPONSE, "sequence": index, "slot": rng.randrange(99),
            "blocks": len(payload) // frame.BLOCK, "status": 0, "value": rng.getrandbits(32),
        }  # fmt: skip
        completions.append({"header": header, "answer": answer, "lanes": lanes})
        payloads.append(payload)
    ended = False

    def source(stream: Any, items: list[Any], seed: int) -> Any:
        async def run(ctx: Any) -> None:
            await send(ctx, stream, items, random.Random(seed), pause)

        return run

    async def sink(ctx: Any) -> None:
        nonlocal ended
        for completion, payload in zip(completions, payloads, strict=True):
            data, last = b"", 0
            while not last:
                word = await receive(ctx, framer.o, rng, pause)
                data, last = data + word.data.to_bytes(g.link_bytes, "little"), word.last
            response, header = decode(data, g.link_bytes), completion["header"]
            assert (response.sequence, response.slot) == (header["sequence"], header["slot"])
            assert (response.opcode, response.value) == (Opcode.INFO, header["value"])
            assert response.payload == payload
        assert ctx.get(dut.idle)
        ended = True

    async def counter_words(ctx: Any) -> None:
        flat = b"".join(c.to_bytes(8, "little") for c in COUNTERS)
        words = [int.from_bytes(flat[i : i + g.link_bytes], "little") for i in range(0, len(flat), g.link_bytes)]
        while not ended:
            await ctx.tick()
            ctx.set(dut.counter_word, words[ctx.get(dut.counter_index) % len(words)])

    sources = [source(dut.i, completions, 1), source(dut.vectors, vectors, 2), source(dut.rows, rows, 3)]
    if g.states:
        sources += [source(dut.outputs, outputs, 4), source(dut.state, states, 5)]
    simulate(m, counter_words, *sources, sink)


@pytest.mark.parametrize("name", ["tiny", "tiny2", "narrow"])
def test_all_words_are_of_the_copy_that_the_command_made(name: str) -> None:
    g = config(name)
    m = Module()
    m.submodules.dut = dut = Responder(g, info=INFO)
    m.submodules.counters = counters = Counters(g)
    m.d.comb += [
        counters.capture.eq(dut.i.valid & dut.i.ready),
        counters.index.eq(dut.counter_index),
        dut.counter_word.eq(counters.word),
        *(event.eq(1) for event in counters.events),
    ]

    async def bench(ctx: Any) -> None:
        answer = {"answer": Answer.COUNTERS, "header": {"blocks": 8 * len(COUNTER_FIELDS) // frame.BLOCK}}
        seen = []
        for _ in range(3):
            await send(ctx, dut.i, [answer], random.Random(1), 0.0)
            data, last = b"", 0
            while not last:
                word = await receive(ctx, dut.o, random.Random(1), 0.0)
                data, last = data + word.data.to_bytes(g.link_bytes, "little"), word.last
            (count,) = set(np.frombuffer(data[frame.BLOCK :], "<u8").tolist())  # all count the same
            seen.append(count)
        assert seen == sorted(set(seen))

    simulate(m, bench)
