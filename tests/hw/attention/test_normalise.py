from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from statecell.model.normalise import normalise
from statecell.spec.geometry import config
from statecell_hw.attention.normalise import Normalise
from tests.hw.streams import receive, simulate


@pytest.mark.parametrize(("name", "stall"), [("tiny", 0.0), ("tiny2", 0.5), ("narrow", 0.3)])
def test_words_of_all_lanes(name: str, stall: float) -> None:
    g = config(name)
    rng = random.Random(5)
    dut = Normalise(g)
    results = []
    for number in range(12):
        bits = [rng.randint(10, g.normaliser_bits) for _ in range(g.lanes)]
        sums = torch.tensor([rng.getrandbits(b) | 1 << (b - 1) for b in bits])
        if number < 4:
            sums[:] = [1, (1 << g.normaliser_bits) - 1, 65535 << 4, 0][number]
        top = 1 << (g.accumulator_bits - 1)
        scale = torch.tensor([rng.choice((1 / 4, 1, 1000, 1e9)) for _ in range(g.lanes)])
        spread = torch.tensor([[rng.uniform(-8, 8) for _ in range(g.head_dim)] for _ in range(g.lanes)]).double()
        drain = (spread * sums[:, None].double() * scale[:, None]).clamp(1 - top, top - 1).to(torch.int64)
        drain[0, :3] = torch.tensor([-top, top - 1, 0])
        results.append((sums, drain, rng.randint(1, g.lanes)))
    waiting: list[int] = []
    captured: list[int] = []
    words: list[int] = []
    drained: list[int] = []

    async def passes(ctx: Any) -> None:
        for number, (_, _, lanes) in enumerate(results):
            ctx.set(dut.done, 1)
            ctx.set(dut.lanes, lanes)
            while not ctx.get(dut.capture):
                await ctx.tick()
                ctx.set(dut.done, 0)
                ctx.set(dut.lanes, 0)
            waiting.append(number)
            await ctx.tick()
            ctx.set(dut.done, 0)
            if number % 3:
                await ctx.tick().until(dut.drained)
                for _ in range(rng.choice((0, 0, 5))):
                    await ctx.tick()

    async def registers(ctx: Any) -> None:
        content: list[int] = []
        while True:
            capture, shift = (await ctx.tick().sample(dut.capture, dut.shift))[-2:]
            if capture:
                sums, drain, _ = results[waiting.pop(0)]
                content = drain.flatten().tolist()
                for port, value in zip(dut.drain_sums, sums.tolist(), strict=True):
                    ctx.set(port, value)
            elif shift:
                content = content[g.word:]
            for port, value in zip(dut.elements, content or [0] * g.word, strict=False):
                ctx.set(port, value)

    async def outputs(ctx: Any) -> None:
        for number, (sums, drain, lanes) in enumerate(results):
            expected = normalise(drain, sums)
            for lane in range(lanes):
                for at in range(0, g.head_dim, g.word):
                    word = await receive(ctx, dut.o, rng, stall)
                    got = [word.data[p] for p in range(g.word)]
                    assert got == expected[lane, at:at + g.word].tolist(), f"result {number}, lane {lane}, element {at}"
        assert not ctx.get(dut.busy)

    async def watch(ctx: Any) -> None:
        cycle = 0
        while len(words) < sum(lanes for _, _, lanes in results) * g.vector_words:
            capture, done, valid, ready = (
                await ctx.tick().sample(dut.capture, dut.drained, dut.o.valid, dut.o.ready))[-4:]
            captured.extend([cycle] * capture)
            drained.extend([cycle] * done)
            words.extend([cycle] * (valid & ready))
            cycle += 1

    simulate(dut, passes, outputs, watch, background=[registers], max_cycles=5000)
    assert len(captured) == len(drained) == len(results)
    assert all(c > d for c, d in zip(captured[1:], drained, strict=False)), "a capture waits for the drain registers"
    if stall == 0:
        at = 0
        for cycle, (_, _, lanes) in zip(captured, results, strict=True):
            count = lanes * g.vector_words
            assert words[at:at + count] == list(range(cycle + dut.latency - 1, cycle + dut.latency - 1 + count))
            at += count
