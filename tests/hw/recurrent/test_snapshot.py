from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from statecell.snapshot import StateStatus, encode_status, same_mode
from statecell.spec import formats
from statecell.spec.commands import STATE_FIELDS, StateFlag, StateMode, StateRegisters
from statecell.spec.geometry import Geometry, config
from statecell_hw.recurrent.snapshot import Snapshot
from tests.hw.recurrent.payload import payload_words
from tests.hw.streams import receive, simulate

LIMITS = {"stored": 1, "skipped": 32, "rescaled": 32, "energy": 57, "logged": 8, "lost": 12}
"""Bits of each register."""
SLOTS = 5


def random_status(g: Geometry, rng: random.Random) -> StateStatus:
    flags = StateFlag(rng.randrange(2048))
    lanes = bool(flags & StateFlag.LANE_DECAY)
    interval = 1 if lanes else rng.choice((1, 1, 2, 9, 128 if rng.random() < 0.2 else 5))
    mode = StateMode(
        interval=interval, flags=flags, feedback=rng.randint(0, 16), shift=rng.randrange(16),
        channels=8 * rng.randint(2, g.head_dim // 4),
        first_page=rng.randrange(g.pages), seed=rng.getrandbits(32))
    registers = StateRegisters(**{name: rng.getrandbits(bits) for name, bits in LIMITS.items() if name != "logged"},
                               logged=rng.choice((0, 1, interval)) if interval > 1 else 0)
    count = g.head_dim if lanes else 1
    factors = np.array([rng.randrange(1 << 23, 1 << 24) for _ in range(count)], np.uint32)
    ages = np.array([rng.getrandbits(LIMITS["lost"]) for _ in range(interval if interval > 1 else 0)], np.uint32)
    return StateStatus(mode=mode, registers=registers, factors=factors, ages=ages)


def slot_fields(mode: StateMode, g: Geometry) -> dict[str, Any]:
    """A mode as slot_layout has it."""
    names = {"delta": StateFlag.DELTA, "wide": StateFlag.WIDE, "blind": StateFlag.RESIDUAL, "fresh": StateFlag.FRESH,
             "supplied": StateFlag.SUPPLIED, "stochastic": StateFlag.STOCHASTIC}
    inner = {name: int(bool(mode.flags & flag)) for name, flag in names.items()}
    outer = {"rotate": StateFlag.ROTATE, "lane_decay": StateFlag.LANE_DECAY, "decay_first": StateFlag.DECAY_FIRST,
             "bonus": StateFlag.BONUS, "halves": StateFlag.HALVES}
    return {
        "mode": {**inner, "feedback": mode.feedback, "shift": mode.shift},
        **{name: int(bool(mode.flags & flag)) for name, flag in outer.items()},
        "base": mode.first_page * g.page_rows, "channels": mode.channels, "interval": mode.interval,
    }


def spoilt(status: StateStatus, rng: random.Random) -> StateStatus:
    """With a register, a factor or an age outside its range."""
    name = rng.choice([*STATE_FIELDS, "factors", "ages"])
    if name == "ages" and len(status.ages):
        ages = status.ages.copy()
        ages[rng.randrange(len(ages))] = 1 << rng.randrange(12, 32)
        return replace(status, ages=ages)
    name = "factors" if name == "ages" else name
    if name == "factors":
        factors = status.factors.copy()
        factors[rng.randrange(len(factors))] = rng.choice((0, (1 << 23) - 1, 1 << 24, (1 << 32) - 1))
        return replace(status, factors=factors)
    value = 1 << rng.randrange(LIMITS[name], 64)
    if name == "logged" and rng.random() < 0.5:
        value = status.mode.interval + 1
    return replace(status, registers=replace(status.registers, **{name: value}))


def another(mode: StateMode, g: Geometry, rng: random.Random) -> StateMode:
    """Alike but for one field or flag; never in the count of factors or ages."""
    field = rng.choice(["flags", "feedback", "shift", "channels"])
    if field == "flags":
        flag = rng.choice([f for f in StateFlag if f != StateFlag.LANE_DECAY])
        return replace(mode, flags=mode.flags ^ flag)
    limit = {"feedback": 17, "shift": 16, "channels": 2 * g.head_dim}[field]
    return replace(mode, **{field: (getattr(mode, field) + 8) % limit})


@pytest.mark.parametrize(("name", "link_bytes"), [("recur32", 8), ("recur32", 4), ("recur128", 16)])
def test_states_are_sent_and_set(name: str, link_bytes: int) -> None:
    g = replace(config(name), link_bytes=link_bytes)
    rng = random.Random(6)
    dut = Snapshot(g, slots=SLOTS)
    per_word = link_bytes // 4
    seen = set()

    def words_of(factors: np.ndarray) -> list[int]:
        """Factors as their memory has them; with one a head the other places hold what they like."""
        values = [int(x) for x in factors] if len(factors) > 1 else [int(factors[0]), *[rng.getrandbits(24)] * 3]
        return [sum(x << formats.FACTOR_BITS * i for i, x in enumerate(values[at:at + per_word]))
                for at in range(0, len(values) if len(factors) > 1 else per_word, per_word)]

    async def sent(ctx: Any, slot: int, status: StateStatus) -> None:
        memory = words_of(status.factors)

        async def look(payload: list[int]) -> list[int]:
            words: list[int] = []
            while len(words) < len(payload):
                if ctx.get(dut.factors.reads):
                    number, entry = ctx.get(dut.factors.number), ctx.get(dut.ages.entry)
                    assert ctx.get(dut.factors.slot) == slot
                    assert (ctx.get(dut.ages.slot), ctx.get(dut.ages.reads)) == (slot, 1)
                    await ctx.tick()
                    ctx.set(dut.factors.factors, memory[number] if number < len(memory) else 0)
                    ctx.set(dut.ages.age, int(status.ages[entry]) if entry < len(status.ages) else 0)
                elif ctx.get(dut.o.valid):
                    words.append(await receive(ctx, dut.o, rng, 0.2))
                else:
                    await ctx.tick()
            return words

        ctx.set(dut.save, 1)
        await ctx.tick()
        ctx.set(dut.save, 0)
        assert ctx.get(dut.busy)
        payload = payload_words(encode_status(status), link_bytes)
        assert await look(payload) == payload
        assert not ctx.get(dut.busy)

    async def taken(ctx: Any, slot: int, own: StateMode, status: StateStatus, bad: bool) -> None:
        words = payload_words(encode_status(status), link_bytes)
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        for number, word in enumerate(words):
            while rng.random() < 0.1:
                await ctx.tick()
            assert ctx.get(dut.of_mode) == int(number < 16 // link_bytes) and ctx.get(dut.i.ready)
            ctx.set(dut.i.payload, word)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
        ctx.set(dut.given, slot_fields(status.mode, g))
        await ctx.tick()
        differs = not same_mode(own, status.mode)
        assert (ctx.get(dut.bad), ctx.get(dut.differs)) == (int(bad), int(differs)), status
        seen.add((bad, differs))
        if bad or differs:
            return
        for field in STATE_FIELDS:
            assert ctx.get(dut.registers[field]) == getattr(status.registers, field)
        ctx.set(dut.restore, 1)
        await ctx.tick()
        ctx.set(dut.restore, 0)
        expected = words_of(status.factors)
        low = (1 << (24 * per_word if len(status.factors) > 1 else 24)) - 1
        for number in range(max(len(expected), len(status.ages))):
            assert ctx.get(dut.busy) and not ctx.get(dut.factors.reads) and not ctx.get(dut.ages.reads)
            assert ctx.get(dut.factors.writes) == int(number < len(expected))
            assert ctx.get(dut.ages.writes) == int(number < len(status.ages))
            if number < len(expected):
                assert (ctx.get(dut.factors.slot), ctx.get(dut.factors.number)) == (slot, number)
                assert ctx.get(dut.factors.written) & low == expected[number] & low
            if number < len(status.ages):
                assert (ctx.get(dut.ages.slot), ctx.get(dut.ages.entry)) == (slot, number)
                assert ctx.get(dut.ages.written) == status.ages[number]
            await ctx.tick()
        assert not ctx.get(dut.busy) and not ctx.get(dut.factors.writes) and not ctx.get(dut.ages.writes)

    async def bench(ctx: Any) -> None:
        for _ in range(40):
            slot, status = rng.randrange(SLOTS), random_status(g, rng)
            ctx.set(dut.slot, slot)
            ctx.set(dut.held, slot_fields(status.mode, g))
            ctx.set(dut.current, {"noise": status.mode.seed, **{n: getattr(status.registers, n) for n in STATE_FIELDS}})
            await sent(ctx, slot, status)
            given = replace(status, mode=replace(status.mode, first_page=rng.randrange(g.pages)))
            if differs := rng.random() < 0.3:
                given = replace(given, mode=another(given.mode, g, rng))
            if bad := not differs and rng.random() < 0.4:
                given = spoilt(given, rng)
            await taken(ctx, slot, status.mode, given, bad)

    simulate(dut, bench)
    assert seen == {(False, False), (True, False), (False, True)}
