from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from statecell.bench.random_states import random_scales, random_token
from statecell.model.recurrent.mode import Mode, Rule, Scales
from statecell.model.recurrent.state import State, new_state
from statecell.spec.geometry import config
from statecell_hw.recurrent.tokens import Section, TokenBuffer
from tests.hw.recurrent.payload import payload_words, slot_fields, token_payload
from tests.hw.recurrent.ports import scale_fields
from tests.hw.streams import simulate

CHANNELS = 24


def heads(g: Any, lanes: bool, halves: int) -> State:
    modes = [Mode(scales=scales, rotate=False)
             for scales in (Scales.HELD, Scales.SUPPLIED if halves == 1 else Scales.FRESH)] * 3
    return new_state(modes, Rule(), g, channels=CHANNELS, halves=halves, lane_decay=lanes)


def spoilt(payload: bytes, at: int, value: bytes) -> bytes:
    return payload[:at] + value + payload[at + len(value):]


@pytest.mark.parametrize(("name", "lanes"), [("recur32", False), ("recur32", True), ("recur128", True)])
def test_payloads_come_back_by_part(name: str, lanes: bool) -> None:
    compare(name, lanes, 1)


@pytest.mark.parametrize("name", ["recur32", "hybrid"])
def test_payloads_of_two_halves_come_back_by_part(name: str) -> None:
    compare(name, False, 2)


def compare(name: str, lanes: bool, halves: int) -> None:
    g = config(name)
    generator = torch.Generator().manual_seed(1)
    rng = random.Random(1)
    state = heads(g, lanes, halves)
    token, scales = random_token(state, generator), random_scales(state, generator)
    token.beta[:] = torch.randint(0, 1 << 16, token.beta.shape, generator=generator)
    dut = TokenBuffer(g, slots=state.heads)
    vector = 2 * state.width
    start = 16 + (4 * g.head_dim if lanes else 0)
    bad = [(0, b"\0\0\1"), (start + 6, b"\0\x80"), (start + vector + 2, b"\0\x80"), (start + 3 * vector, b"\0\x80"),
           *([(20, bytes(4)), (24, b"\1\0\0\1")] if lanes else [(4, bytes(4)), (4, b"\1\0\0\1")])]

    async def payload(ctx: Any, head: int, body: bytes, *, cut: int = 0) -> None:
        ctx.set(dut.head.payload, {"slot": head, "config": slot_fields(state, head, 4 * head), "entries": head})
        ctx.set(dut.head.valid, 1)
        await ctx.tick().until(dut.head.ready)
        ctx.set(dut.head.valid, 0)
        words = payload_words(body, g.link_bytes)
        for word in words[:len(words) - cut]:
            ctx.set(dut.i.payload, word)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)
            if rng.random() < 0.1:
                await ctx.tick()
        assert ctx.get(dut.complete) == int(not cut)

    async def pulse(ctx: Any, signal: Any) -> None:
        ctx.set(signal, 1)
        await ctx.tick()
        ctx.set(signal, 0)

    async def bench(ctx: Any) -> None:
        for head in range(state.heads):
            body = token_payload(state, token, head, scales)
            for at, value in bad:
                await payload(ctx, head, spoilt(body, at, value))
                assert ctx.get(dut.bad), (at, value)
                await pulse(ctx, dut.drop)
            if bool(state.modes.supplied[head]):
                await payload(ctx, head, body[:-16] + b"\x78" + body[-15:])
                assert ctx.get(dut.bad), "a scale with the exponent of a low plane"
                await pulse(ctx, dut.drop)
            await payload(ctx, head, body, cut=3)
            await pulse(ctx, dut.drop)
            await payload(ctx, head, body)
            assert not ctx.get(dut.bad) and not ctx.get(dut.o.valid)
            await pulse(ctx, dut.accept)
            await taken(ctx, head)
        # a commit has no payload; a token with one decay that changes nothing is found
        ctx.set(dut.head.payload, {"slot": 1, "config": slot_fields(state, 1, 4), "entries": 5, "commit": 1})
        ctx.set(dut.head.valid, 1)
        await ctx.tick().until(dut.head.ready)
        ctx.set(dut.head.valid, 0)
        assert ctx.get(dut.complete) and not ctx.get(dut.i.ready)
        await pulse(ctx, dut.accept)
        found = ctx.get(dut.o.payload)
        assert ctx.get(dut.o.valid) and (found.slot, found.entries, found.commit) == (1, 5, 1)
        await pulse(ctx, dut.o.ready)
        await pulse(ctx, dut.release)
        for decay, beta in ((1 << 24, 0), (1 << 24, 1), ((1 << 24) - 1, 0)) if not lanes else ():
            token.decay[:], token.beta[:] = decay, beta
            await payload(ctx, 0, token_payload(state, token, 0, scales))
            assert ctx.get(dut.frozen) == (decay >> 24 and not beta)
            await pulse(ctx, dut.drop)

    async def taken(ctx: Any, head: int) -> None:
        """The token, a cycle after it was accepted, and all that can be read of it."""
        assert ctx.get(dut.o.valid) and ctx.get(dut.o.payload.slot) == head
        assert ctx.get(dut.o.payload.beta) == int(token.beta[head])
        assert lanes or ctx.get(dut.o.payload.decay) == int(token.decay[head, 0])
        assert ctx.get(dut.o.payload.config.base) == 4 * head
        assert ctx.get(dut.o.payload.entries) == head and not ctx.get(dut.o.payload.commit)
        bay = ctx.get(dut.o.payload.bay)
        assert bay == head % 4
        await pulse(ctx, dut.o.ready)
        ctx.set(dut.words.bay, bay)
        parts = [(Section.Q, token.q, "<i2"), (Section.K, token.k, "<i2"), (Section.B, token.b, "<i2")]
        for section, values, kind in [*parts, *([(Section.DECAYS, token.decay, "<u4")] if lanes else [])]:
            ctx.set(dut.words.section, section)
            expected = payload_words(values[head].numpy().astype(kind).tobytes(), g.link_bytes)
            for number, word in enumerate(expected):
                ctx.set(dut.words.word, number)
                await ctx.tick()
                assert ctx.get(dut.words.data) == word, (section, number)
        await channels(ctx, head, bay)
        await pulse(ctx, dut.release)

    async def channels(ctx: Any, head: int, bay: int) -> None:
        ctx.set(dut.channels.bay, bay)
        for cycle in range(CHANNELS + dut.channel_latency):
            ctx.set(dut.channels.channel, min(cycle, CHANNELS - 1))
            past = cycle - dut.channel_latency
            if past >= 0:
                assert ctx.get(dut.channels.v) == int(token.v[head, past])
                if bool(state.modes.supplied[head]):
                    found = [ctx.get(scale) for scale in dut.channels.scales]
                    fields = [scale_fields(int(byte)) for byte in scales[head, past]]
                    assert [{name: scale[name] for name in fields[0]} for scale in found] == fields
            await ctx.tick()

    simulate(dut, bench)
