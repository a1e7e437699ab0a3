"""Operands of tokens against the integer model's, and the cycles that a token takes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from statecell.bench.random_states import random_token
from statecell.model.recurrent import factor
from statecell.model.recurrent.mode import Mode, Rule
from statecell.model.recurrent.state import new_state
from statecell.spec.geometry import config
from statecell_hw.recurrent.prepare import Prepare
from statecell_hw.recurrent.tokens import Section
from tests.hw.recurrent.payload import payload_words, slot_fields
from tests.hw.recurrent.ports import head_fields, key_fields
from tests.hw.recurrent.states import Operands
from tests.hw.streams import simulate

HEADS, TOKENS = 3, 3


@pytest.mark.parametrize(("name", "rule", "lanes", "bonus"), [
    ("recur32", Rule(delta=True), False, False), ("recur32", Rule(decay_first=False), True, True),
    ("hybrid", Rule(), False, True)])
def test_operands_of_tokens(name: str, rule: Rule, lanes: bool, bonus: bool) -> None:
    compare(name, rule, lanes, bonus, 1)


@pytest.mark.parametrize(("name", "rule", "bonus"), [
    ("recur32", Rule(delta=True), False), ("hybrid", Rule(decay_first=False), True)])
def test_operands_of_tokens_of_two_halves(name: str, rule: Rule, bonus: bool) -> None:
    compare(name, rule, False, bonus, 2)


def compare(name: str, rule: Rule, lanes: bool, bonus: bool, halves: int) -> None:
    g = config(name)
    generator = torch.Generator().manual_seed(3)
    modes = [Mode(rotate=head != 1 and not lanes) for head in range(HEADS)]
    state = new_state(modes, rule, g, channels=16, halves=halves, lane_decay=lanes)
    dut = Prepare(g, slots=HEADS)
    tokens = []
    stored = [False] * HEADS
    due: list[tuple[int, int, Any, Operands, bool]] = []  # token, head, fields, operands, rows hold a state
    fields = []
    for t in range(TOKENS):
        token = random_token(state, generator, frozen=0.3)
        if not bonus:
            token.b[:] = token.k
        tokens.append(token)
        operands = Operands(state, token)
        for head in range(HEADS):
            fields.append(key_fields(state, operands, head))
            due.append((t, head, head_fields(state, operands, token.beta, head), operands, stored[head]))
            stored[head] = stored[head] or not bool(operands.frozen[head])
        state.factor = factor.normalised(factor.decayed(state.factor, token.decay))[0]
    taken: list[int] = []
    loads = passes = keys = cycle = 0

    def word(t: int, head: int, section: Section, number: int) -> int:
        token = tokens[t]
        values, kind = {Section.Q: (token.q, "<i2"), Section.K: (token.k, "<i2"), Section.B: (token.b, "<i2"),
                        Section.DECAYS: (token.decay, "<u4")}[section]
        words = payload_words(values[head].numpy().astype(kind).tobytes(), g.link_bytes)
        return words[number % len(words)]

    async def feed(ctx: Any) -> None:
        """Tokens at once, their words when asked for."""
        nonlocal cycle
        number = 0
        while passes < len(due) or keys < len(due):
            if number < len(due):
                t, head = due[number][:2]
                ctx.set(dut.i.valid, 1)
                ctx.set(dut.i.payload, {
                    "slot": head, "config": slot_fields(state, head, 0, bonus=bonus), "bay": number % 4,
                    "beta": int(tokens[t].beta[head]), "decay": 0 if lanes else int(tokens[t].decay[head, 0]),
                    "entries": 0, "commit": 0})
            else:
                ctx.set(dut.i.valid, 0)
            ready, section, place = ctx.get(dut.i.ready), ctx.get(dut.words.section), ctx.get(dut.words.word)
            await ctx.tick()
            if section in (Section.Q, Section.K, Section.B, Section.DECAYS) and taken:
                at = len(taken) - 1
                ctx.set(dut.words.data, word(*due[at][:2], section, place))
            if number < len(due) and ready:
                taken.append(cycle)
                number += 1
            cycle += 1

    async def look(ctx: Any) -> None:
        """Vectors, passes and keys, all taken as soon as they come."""
        nonlocal loads, passes, keys
        ctx.set(dut.load_ready, 1)
        ctx.set(dut.o.ready, 1)
        while True:
            if ctx.get(dut.load.valid):
                number, lane = divmod(loads, 2 * halves)
                query, place = due[number][3].query, (due[number][1], lane % 2, lane // 2)
                assert ctx.get(dut.load.lane) == lane
                assert [ctx.get(c) for c in dut.load.codes] == query.codes[place].tolist(), (loads, place)
                assert ctx.get(dut.load.exponent) == int(query.exponent[place])
                assert ctx.get(dut.load.mantissa) == int(query.mantissa[place]) - 8
                loads += 1
            ctx.set(dut.key_taken, ctx.get(dut.o.valid))
            if ctx.get(dut.o.valid):
                _, head, expected, _, holds = due[passes]
                found = ctx.get(dut.o.payload)
                assert loads >= 2 * halves * (passes + 1), "a pass needs its vectors"
                assert found.slot == head and found.bay == passes % 4 and found.stored == int(holds)
                shape = dut.o.payload.head.shape()
                assert ctx.get(dut.o.payload.head.as_value()) == shape.const({**expected, "noise": 0}).as_bits()
                got = ctx.get(dut.key.as_value())
                assert got == dut.key.shape().const(fields[passes]).as_bits(), f"key of token {passes}"
                passes, keys = passes + 1, keys + 1
            await ctx.tick()

    async def reopen(ctx: Any) -> None:
        """Whether the rows of a slot count as it is opened, and what the port for snapshots shows of it."""
        for held in (1, 0):
            ctx.set(dut.open_en, 1)
            ctx.set(dut.open_slot, 1)
            ctx.set(dut.open_stored, held)
            ctx.set(dut.open_lost, 77 * held)
            await ctx.tick()
            ctx.set(dut.open_en, 0)
            ctx.set(dut.factors.slot, 1)
            ctx.set(dut.factors.reads, 1)
            await ctx.tick()
            assert ctx.get(dut.was_lost) == 77 * held
            assert (ctx.get(dut.stored), ctx.get(dut.factors.factors) & 0xFFFFFF) == (held, 1 << 23)
            ctx.set(dut.factors.reads, 0)

    async def feed_and_reopen(ctx: Any) -> None:
        await feed(ctx)
        await reopen(ctx)

    simulate(dut, feed_and_reopen, background=[look], max_cycles=5000)
    assert loads == 2 * halves * len(due)
    gaps = [b - a for a, b in pairwise(taken)]
    if lanes:
        assert dut.interval < max(gaps) <= dut.interval + dut.lane_cycles
    elif halves > 1:
        assert dut.interval < max(gaps) < 2 * dut.interval
    else:
        assert max(gaps) == dut.interval
