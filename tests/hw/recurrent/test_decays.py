from __future__ import annotations

from typing import Any

import pytest
import torch

from statecell.bench.random_states import random_token
from statecell.model.normalise import reciprocal
from statecell.model.recurrent import factor
from statecell.model.recurrent.mode import Mode, Rule
from statecell.model.recurrent.state import ONE_FACTOR, new_state
from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_hw.recurrent.decays import Decays
from tests.hw.recurrent.payload import payload_words
from tests.hw.streams import simulate

SLOTS, TOKENS = 3, 4


@pytest.mark.parametrize(("name", "lanes", "decay_first"), [
    ("recur32", False, True), ("recur32", True, False), ("recur128", True, True)])
def test_factors_of_slots(name: str, lanes: bool, decay_first: bool) -> None:
    """Factors of each slot over some tokens; a slot that is opened again begins at 1.0."""
    g = config(name)
    generator = torch.Generator().manual_seed(8)
    state = new_state([Mode(rotate=False)] * SLOTS, Rule(), g, channels=16, lane_decay=lanes)
    dut = Decays(g, slots=SLOTS)
    count = 2 * g.vector_words if lanes else 1
    frozen = []

    async def token(ctx: Any, slot: int, decay: torch.Tensor) -> None:
        before = state.factor[slot].clone()
        after = factor.decayed(before, decay)
        whole, octaves = factor.normalised(after)
        state.factor[slot] = whole
        words = payload_words(decay.numpy().astype("<u4").tobytes(), g.link_bytes) if lanes else [0]
        ctx.set(dut.begins, 1)
        await ctx.tick()
        ctx.set(dut.begins, 0)
        ctx.set(dut.slot, slot)
        ctx.set(dut.lane_decay, int(lanes))
        ctx.set(dut.decay_first, int(decay_first))
        ctx.set(dut.decay, 0 if lanes else int(decay[0]))
        for number in range(count):
            ctx.set(dut.reads, 1)
            ctx.set(dut.number, number)
            await ctx.tick()
            ctx.set(dut.reads, 0)
            ctx.set(dut.word, words[number])
        for _ in range(dut.latency - 1):
            assert not ctx.get(dut.done)
            await ctx.tick()
        assert ctx.get(dut.done)
        assert ctx.get(dut.one) == int((decay == 1 << formats.DECAY_FRACTION).all())
        frozen.append(ctx.get(dut.one))
        if lanes:
            assert [ctx.get(fall) for fall in dut.falls] == octaves.clamp(max=formats.UPDATE_BITS).tolist()
        else:
            assert ctx.get(dut.octaves) == int(octaves[0])
        inverse = reciprocal(whole >> 7 & 0xFFFF)
        met = after if lanes else whole
        expected = [x.expand(g.head_dim).tolist() for x in (met if decay_first else before, met, inverse)]
        for place in range(g.vector_words):
            ctx.set(dut.place, place)
            await ctx.tick()
            for p, weight in enumerate(dut.weights):
                lane = place * g.word + p
                assert [ctx.get(weight[name]) for name in ("q", "k", "inverse")] == [x[lane] for x in expected]

    async def shown(ctx: Any, slot: int) -> list[int]:
        """Factors of a slot, as the port for snapshots has them."""
        found: list[int] = []
        for number in range(count):
            ctx.set(dut.access.reads, 1)
            ctx.set(dut.access.slot, slot)
            ctx.set(dut.access.number, number)
            await ctx.tick()
            word = ctx.get(dut.access.factors)
            found += [word >> 24 * i & 0xFFFFFF for i in range(g.word // 2 if lanes else 1)]
            ctx.set(dut.access.reads, 0)
        return found

    async def set_to(ctx: Any, slot: int, factors: list[int]) -> None:
        per_word = g.word // 2 if lanes else 1
        for number in range(count):
            part = factors[number * per_word:(number + 1) * per_word]
            ctx.set(dut.access.writes, 1)
            ctx.set(dut.access.slot, slot)
            ctx.set(dut.access.number, number)
            ctx.set(dut.access.written, sum(x << 24 * i for i, x in enumerate(part)))
            await ctx.tick()
            ctx.set(dut.access.writes, 0)

    async def bench(ctx: Any) -> None:
        for number in range(TOKENS):
            decays = random_token(state, generator, frozen=0.3).decay
            for slot in range(SLOTS):
                await token(ctx, slot, decays[slot])
            if number == 1:
                ctx.set(dut.open_en, 1)
                ctx.set(dut.open_slot, 1)
                await ctx.tick()
                ctx.set(dut.open_en, 0)
                state.factor[1] = ONE_FACTOR
                state.factor[2] = torch.randint(1 << 23, 1 << 24, state.factor[2].shape, generator=generator)
                await set_to(ctx, 2, state.factor[2].tolist())
            for slot in range(SLOTS):
                assert await shown(ctx, slot) == state.factor[slot].tolist()

    simulate(dut, bench)
    assert set(frozen) == {0, 1}
