"""Tokens of many slots through the whole unit, against the integer model: outputs, rows and slot registers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.bench.random_states import every_mode, random_scales, random_token
from statecell.model.quantise import planes
from statecell.model.recurrent import integer
from statecell.model.recurrent.mode import Mode, Rule, Scales, Storage
from statecell.model.recurrent.state import State, new_state
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.multiply import Multiplier
from statecell_hw.array.rowmemory import RowMemory
from statecell_hw.recurrent import ages, fold, gain, readpath, share
from statecell_hw.recurrent.operands import slot_layout
from statecell_hw.recurrent.unit import RecurrentUnit
from tests.hw.recurrent.payload import payload_words, signed_outputs, slot_fields, token_payload
from tests.hw.rows import row_words
from tests.hw.streams import simulate

CHANNELS = 16


class Array(wiring.Component):
    """The unit between two banks, whose rows can be looked at while nothing moves: ``peek`` a row, with ``peeking``."""

    peeking: Signal
    peek: Signal
    key: Signal
    value: Signal

    def __init__(self, g: Geometry, slots: int, multiplier: Multiplier) -> None:
        self.banks = RowMemory(g), RowMemory(g)
        self.unit: Any = RecurrentUnit(
            g, slots=slots, read_latency=self.banks[0].latency, multiplier=multiplier)
        super().__init__({
            "peeking": In(1), "peek": In(range(g.rows)), "key": Out(g.row_bits), "value": Out(g.row_bits),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit, m.submodules.keys, m.submodules.values = self.unit, *self.banks
        access = self.unit.banks
        for bank, enable, data, shown, out in (
            (self.banks[0], access.write_key_en, access.write_key, access.key, self.key),
            (self.banks[1], access.write_value_en, access.write_value, access.value, self.value),
        ):
            m.d.comb += [
                bank.write_en.eq(enable), bank.write_row.eq(access.write_row), bank.write_data.eq(data),
                bank.read_en.eq(access.read_en | self.peeking),
                bank.read_row.eq(Mux(self.peeking, self.peek, access.row)),
                shown.eq(bank.read_data), out.eq(bank.read_data),
            ]
        return m


def addresses(state: State) -> list[int]:
    """First row of each head; the log follows the rows."""
    sizes = [state.channels // (3 - mode.planes) + (2 * mode.interval if mode.interval > 1 else 0)
             for mode in state.modes.each]
    return [sum(sizes[:head]) for head in range(state.heads)]


def stored_rows(state: State, head: int) -> list[tuple[int, int]]:
    """A head's rows as (key bank, value bank) have them, from its base on."""
    words = row_words(state.rows(head), state.geometry)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    return [(high, low) for low, high in pairs] if state.modes.each[head].planes == 2 else pairs


def logged_rows(state: State, head: int) -> list[tuple[int, tuple[int, int]]]:
    """Rows of a head's log that are in use, with their place after its other rows."""
    log, interval = state.log, state.modes.each[head].interval
    if log is None or interval == 1:
        return []
    found = []
    for entry in range(int(log.length[head])):
        for at, codes, scales in ((entry, log.keys, log.key_scales),
                                  (interval + entry, log.values, log.value_scales)):
            low, high = row_words(planes(codes[head, entry][None].long(), scales[head, entry][None, :, None]),
                                  state.geometry)
            found.append((at, (high, low)))
    return found


CASES: list[tuple[str, Rule, bool, int, bool, Multiplier]] = [
    ("recur32", Rule(delta=True), False, 3, False, "native"),
    ("recur32", Rule(decay_first=False), True, 2, False, "native"),
    ("hybrid", Rule(delta=True), False, 1, False, "native"),
    ("recur32", Rule(delta=True), False, 7, True, "native"),
    ("recur32", Rule(decay_first=False), False, 4, True, "gated"),
    ("hybrid", Rule(delta=True), False, 3, True, "native"),
]


@pytest.mark.parametrize(("name", "rule", "lane_decay", "tokens", "logs", "multiplier"), CASES)
def test_tokens_of_many_slots(
    name: str, rule: Rule, lane_decay: bool, tokens: int, logs: bool, multiplier: Multiplier
) -> None:
    """Tokens of heads in every mode, some with a log, which is committed where it is full and once before."""
    g = config(name)
    modes = every_mode(not lane_decay)
    modes = modes[::4] + modes[2:3] if g.head_dim == 64 else modes
    if logs:
        modes = [replace(mode, interval=(2, 5, 1, 3)[number % 4])
                 for number, mode in enumerate(mode for mode in modes if mode.scales != Scales.SUPPLIED)]
    assert not differences(g, rule, lane_decay, tokens, modes, multiplier)


def differences(g: Geometry, rule: Rule, lane_decay: bool, tokens: int, modes: list[Mode],
                multiplier: Multiplier) -> list[str]:
    """What the unit answers, keeps or counts otherwise than the model."""
    logs = any(mode.interval > 1 for mode in modes)
    generator = torch.Generator().manual_seed(12)
    rng = random.Random(3)
    wrong: list[str] = []
    state = new_state(modes, rule, g, channels=g.head_dim if logs else CHANNELS, lane_decay=lane_decay,
                      feedback=torch.randint(0, 17, (len(modes),), generator=generator),
                      shift=torch.randint(0, 4, (len(modes),), generator=generator),
                      seed=torch.randint(1, 1 << 32, (len(modes),), generator=generator))
    start = addresses(state)
    seeds = state.noise.clone()
    payloads: list[tuple[int, int, bytes]] = []  # slot, tokens in its log, payload; none for a commit
    answers: list[list[int]] = []
    for number in range(tokens):
        token, scales = random_token(state, generator), random_scales(state, generator)
        held = state.log.length.tolist() if state.log is not None else [0] * state.heads
        payloads += [(head, held[head], token_payload(state, token, head, scales)) for head in range(state.heads)]
        answers += integer.step(state, token, scales=scales).tolist()
        if state.log is not None:
            due = integer.due(state) | ((state.log.length > 0) & (number == 2))
            payloads += [(head, int(state.log.length[head]), b"") for head in range(state.heads) if due[head]]
            integer.commit(state, due, scales=scales)
    # the same slot twice in a row, and a token that is dropped
    dut = Array(g, state.heads, multiplier)
    unit = dut.unit
    count = g.word // 2 if lane_decay else 1
    mask = (1 << count * formats.FACTOR_BITS) - 1

    def packed(factors: torch.Tensor) -> list[int]:
        """Factors as the memory has them, `count` in each of its words."""
        parts = [factors[at:at + count].tolist() for at in range(0, len(factors), count)]
        return [sum(x << i * formats.FACTOR_BITS for i, x in enumerate(part)) for part in parts]

    async def feed(ctx: Any) -> None:
        for head in range(state.heads):
            ctx.set(unit.open_en, 1)
            ctx.set(unit.open_slot, head)
            ctx.set(unit.open_config, slot_fields(state, head, start[head]))
            ctx.set(unit.open_status, {"noise": int(seeds[head])})
            await ctx.tick()
        ctx.set(unit.open_en, 0)
        for number, (head, entries, payload) in enumerate(payloads):
            for dropped in ([True, False] if number % 5 == 2 else [False]):
                ctx.set(unit.token.payload, head)
                ctx.set(unit.entries, entries)
                ctx.set(unit.commit, not payload)
                ctx.set(unit.token.valid, 1)
                await ctx.tick().until(unit.token.ready)
                ctx.set(unit.token.valid, 0)
                words = payload_words(payload, g.link_bytes)
                for word in ([~w & ((1 << 8 * g.link_bytes) - 1) for w in words] if dropped else words):
                    while rng.random() < 0.05:
                        await ctx.tick()
                    ctx.set(unit.i.payload, word)
                    ctx.set(unit.i.valid, 1)
                    await ctx.tick().until(unit.i.ready)
                    ctx.set(unit.i.valid, 0)
                while not ctx.get(unit.complete):
                    await ctx.tick()
                ctx.set(unit.drop if dropped else unit.accept, 1)
                await ctx.tick()
                ctx.set(unit.drop, 0)
                ctx.set(unit.accept, 0)

    async def take(ctx: Any) -> None:
        for number, answer in enumerate(answers):
            words: list[int] = []
            last = 0
            while not last:
                while rng.random() < 0.2:
                    await ctx.tick()
                ctx.set(unit.o.ready, 1)
                word, last = await ctx.tick().sample(unit.o.payload.data, unit.o.payload.last).until(unit.o.valid)
                ctx.set(unit.o.ready, 0)
                words.append(word)
            if signed_outputs(words, g.link_bytes) != answer:
                wrong.append(f"token {number}, {modes[number % state.heads]}")
        while not ctx.get(unit.idle):
            await ctx.tick()
        await look(ctx)

    async def look_closer(ctx: Any, head: int) -> None:
        """What a snapshot takes beside rows and registers: configuration, factors, and what they have lost."""
        shape: Any = slot_layout(g)
        ctx.set(unit.token.payload, head)
        ctx.set(unit.factors.slot, head)
        for number in range(2 * g.vector_words if lane_decay else 1):
            ctx.set(unit.factors.reads, 1)
            ctx.set(unit.factors.number, number)
            await ctx.tick()
            if ctx.get(unit.factors.factors) & mask != packed(state.factor[head])[number]:
                wrong.append(f"factor {number}, {modes[head]}")
        if ctx.get(unit.status.lost) != int(state.lost[head]):
            wrong.append(f"lost, {modes[head]}")
        ctx.set(unit.factors.reads, 0)
        for entry in range(int(state.log.length[head]) if state.log is not None else 0):
            ctx.set(unit.ages.reads, 1)
            ctx.set(unit.ages.slot, head)
            ctx.set(unit.ages.entry, entry)
            await ctx.tick()
            assert state.log is not None
            if ctx.get(unit.ages.age) != int(state.log.lost[head, entry]):
                wrong.append(f"age {entry}, {modes[head]}")
            ctx.set(unit.ages.reads, 0)
        assert ctx.get(unit.status.stored) == int(state.noise[head] != seeds[head])
        assert ctx.get(unit.config.as_value()) == shape.const(slot_fields(state, head, start[head])).as_bits()

    async def look(ctx: Any) -> None:
        ctx.set(dut.peeking, 1)
        for head in range(state.heads):
            for row, expected in enumerate(stored_rows(state, head)):
                ctx.set(dut.peek, start[head] + row)
                await ctx.tick().repeat(dut.banks[0].latency)
                touched = bool((state.noise[head] != seeds[head]).item())
                if touched and (ctx.get(dut.key), ctx.get(dut.value)) != expected:
                    wrong.append(f"row {row}, {modes[head]}")
            rows = len(stored_rows(state, head))
            for row, expected in logged_rows(state, head):
                ctx.set(dut.peek, start[head] + rows + row)
                await ctx.tick().repeat(dut.banks[0].latency)
                if (ctx.get(dut.key), ctx.get(dut.value)) != expected:
                    wrong.append(f"row {row} of the log, {modes[head]}")
            ctx.set(unit.status_slot, head)
            await ctx.tick()
            for name, value in (("noise", state.noise), ("skipped", state.skipped), ("rescaled", state.rescaled),
                                ("energy", state.energy())):
                if ctx.get(unit.status[name]) != int(value[head]):
                    wrong.append(f"{name}, {modes[head]}")
            await look_closer(ctx, head)

    simulate(dut, feed, take, max_cycles=90_000)
    assert int(state.skipped.sum()) > 0 or len(modes) < 6
    return wrong


WATCHED = [Mode(interval=4), Mode(storage=Storage.INT8, interval=3), Mode(storage=Storage.INT8, interval=9)]
MUTANTS: dict[str, tuple[Any, str, int]] = {
    "products with logged keys twice too large": (readpath, "KEY_FALL", readpath.KEY_FALL - 1),
    "shares twice too small": (share, "TOP_SHIFT", share.TOP_SHIFT + 1),
    "ages of the entry before": (ages, "LATENCY", ages.LATENCY + 1),
    "commits with twice the values": (fold, "VALUE_FRACTION", fold.VALUE_FRACTION - 1),
    "commits whose working scales are too small": (fold, "PLACE", gain.PLACE + 1),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_log_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, constant, value = MUTANTS[name]
    monkeypatch.setattr(module, constant, value)
    assert differences(config("recur32"), Rule(delta=True), False, 9, WATCHED, "native")


def test_without_a_mutant_nothing_differs() -> None:
    assert not differences(config("recur32"), Rule(delta=True), False, 9, WATCHED, "native")
