from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from statecell.spec.geometry import config
from statecell_hw.recurrent.walk import FLIGHTS, Walk
from tests.hw.streams import simulate

SLOTS = 6
LATENCY = 40  # cycles from a pass's last row until it is written


def offering(dut: Walk, passes: list[dict[str, Any]]) -> Callable[[Any], Awaitable[None]]:
    """Offers the passes one after the other, each until it is taken."""

    async def offer(ctx: Any) -> None:
        ctx.set(dut.allowed, 1)
        for entry in passes:
            ctx.set(dut.i.payload, entry)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)

    return offer


@pytest.mark.parametrize("gap", [0, 6])
def test_rows_of_passes_follow_without_a_bubble(gap: int) -> None:
    """Passes over other slots follow at once, those over a slot under way wait until it is written."""
    g = config("recur32")
    rng = random.Random(2)
    dut = Walk(g, slots=SLOTS, gap=gap)
    slots = [0, 1, 2, 3, 4, 5, 0, 0, 1, 2, 2]
    passes = [{"slot": slot, "config": {"mode": {"wide": rng.randrange(2)}, "base": rng.randrange(g.rows - 64),
                                        "channels": rng.choice((16, 24, 64))}, "bay": n % 4, "stored": n % 2}
              for n, slot in enumerate(slots)]
    registers = [rng.getrandbits(32) for _ in range(SLOTS)]
    landings: list[tuple[int, int]] = []  # cycle, pass
    begun: list[int] = []
    ended: list[int] = []
    seen: list[int] = []
    cycle = 0

    async def rows(ctx: Any) -> None:
        nonlocal cycle
        looked = 0
        while len(landings) < len(passes) or cycle <= landings[-1][0]:
            ctx.set(dut.noise, registers[looked])
            number = next((n for at, n in landings if at == cycle), None)
            ctx.set(dut.landed, number is not None)
            if number is not None:
                assert ctx.get(dut.landing) == slots[number]
            if ctx.get(dut.flags.row):
                check_row(ctx)
            looked = ctx.get(dut.looks)
            await ctx.tick()
            if number is not None:
                registers[slots[number]] += 1
            cycle += 1
        assert not ctx.get(dut.busy)

    def check_row(ctx: Any) -> None:
        if ctx.get(dut.flags.first):
            begun.append(cycle)
            seen.append(ctx.get(dut.noise_now))
            assert seen[-1] == registers[slots[len(begun) - 1]]
        entry: Any = passes[len(begun) - 1]
        channel, wide = cycle - begun[-1], entry["config"]["mode"]["wide"]
        assert ctx.get(dut.channel) == channel and ctx.get(dut.current.slot) == entry["slot"]
        assert ctx.get(dut.current.bay) == entry["bay"]
        assert ctx.get(dut.address) == entry["config"]["base"] + (channel if wide else channel // 2)
        assert ctx.get(dut.flags.second) == (0 if wide else channel % 2)
        assert ctx.get(dut.fetch) == int(wide or channel % 2 == 0)
        assert ctx.get(dut.flags.last) == int(channel == entry["config"]["channels"] - 1)
        if ctx.get(dut.flags.last):
            ended.append(cycle)
            landings.append((cycle + LATENCY, len(ended) - 1))

    simulate(dut, offering(dut, passes), rows, max_cycles=3000)
    for number in range(1, len(passes)):
        under_way = [landings[n][0] for n in range(number) if landings[n][0] > ended[number - 1]]
        waits = [landings[n][0] for n in range(number) if slots[n] == slots[number]]
        if len(under_way) < FLIGHTS and all(at < ended[number - 1] - 2 for at in waits):
            assert begun[number] == ended[number - 1] + 1 + gap
        assert all(at < begun[number] for at in waits)
    assert begun[7] > landings[6][0], "the same slot twice in a row"


def test_a_channel_of_two_halves_has_adjacent_rows() -> None:
    """Both rows of each channel; passes of the other kind wait until those before have landed."""
    g = config("recur32")
    dut = Walk(g, slots=SLOTS, gap=0)
    halves = [1, 1, 0, 0, 1]
    passes = [{"slot": n, "config": {"mode": {"wide": n % 2}, "base": 40 * n, "channels": 16, "halves": two}}
              for n, two in enumerate(halves)]
    landings: list[int] = []
    begun: list[int] = []
    cycle = 0

    async def rows(ctx: Any) -> None:
        nonlocal cycle
        number = at = 0
        while len(landings) < len(passes) or cycle <= landings[-1]:
            ctx.set(dut.landed, cycle in landings)
            flags = ctx.get(dut.flags)
            if flags.row:
                two, wide = halves[number], number % 2
                count = 16 << two
                if at == 0:
                    begun.append(cycle)
                assert (flags.first, flags.last, flags.opens) == (at == 0, at == count - 1, at == 0)
                assert (flags.halves, flags.half) == (two, at % 2 if two else 0)
                assert (flags.second, flags.wide) == (0 if wide else at % 2, wide)
                assert ctx.get(dut.channel) == at >> two and ctx.get(dut.odd) == at % 2
                assert ctx.get(dut.address) == ctx.get(dut.home) == 40 * number + (at if wide else at // 2)
                assert ctx.get(dut.fetch) == int(wide or at % 2 == 0)
                at += 1
                if at == count:
                    landings.append(cycle + LATENCY)
                    number, at = number + 1, 0
            await ctx.tick()
            cycle += 1

    simulate(dut, offering(dut, passes), rows, max_cycles=1000)
    for number, (before, now) in enumerate(pairwise(halves), 1):
        if before == now:
            assert begun[number] == landings[number - 1] - LATENCY + 1
        else:
            assert begun[number] > landings[number - 1]


def planned(entry: dict[str, Any]) -> list[tuple[int, int, tuple[str, ...]]]:
    """What a pass with a log or a commit reads: address, index and the flags that are set, a cycle each; address -1 for
    a cycle that reads nothing.
    """
    config, count = entry["config"], entry["entries"]
    wide, channels = config["mode"]["wide"], config["channels"]
    first = config["base"] + (channels if wide else channels // 2)
    keys = [(first + i, i) for i in range(count)]
    values = [(first + config["interval"] + i, i) for i in range(count)]
    states = [(config["base"] + (n if wide else n // 2), n) for n in range(channels)]
    plan: list[tuple[int, int, tuple[str, ...]]]
    if entry["head"]["log"]:
        plan = [(a, i, ("row", "key", "wide")) for a, i in keys]
        plan += [(a, 0, ("row", *(["wide"] if wide else ["second"] * (n % 2)))) for a, n in states]
        return plan + [(a, i, ("row", "value", "wide")) for a, i in values]
    plan = [(a, i, ("row", "value", "wide")) for a, i in values] + [(a, i, ("row", "load", "wide")) for a, i in keys]
    plan += [(-1, i, ("sweep", *["sweep_last"] * (i == count - 1))) for i in range(count)]
    for address, n in states:
        plan.append((address, 0, ("row", *(["wide"] if wide else ["second"] * (n % 2)))))
        for at, i in keys:
            ends = ["ends", *["opens"] * (n == 0)] if i == count - 1 else []
            sweeps = ["sweep", *["sweep_last"] * (i == count - 1)] if n + 1 < channels else []
            plan.append((at, i, ("row", "key", "wide", *ends, *sweeps)))
    return plan


def test_passes_of_a_log_and_commits() -> None:
    """Every cycle of a pass; passes of another kind wait until those before have landed."""
    g = config("recur32")
    rng = random.Random(6)
    dut = Walk(g, slots=SLOTS, gap=0)
    kinds = ["log", "log", "commit", "commit", "log", "token", "commit", "log", "log"]
    passes = [{"slot": n % SLOTS, "entries": rng.choice((1, 2, 7)) if kind == "commit" else rng.choice((0, 1, 5)),
               "config": {"mode": {"wide": n % 2}, "base": rng.randrange(200), "channels": 32, "interval": 9},
               "head": {"log": int(kind == "log"), "commit": int(kind == "commit")}} for n, kind in enumerate(kinds)]
    landings: list[int] = []
    begun: list[int] = []
    cycle = 0

    async def rows(ctx: Any) -> None:
        nonlocal cycle
        number, at, home = 0, 0, 0
        names = ("row", "second", "wide", "key", "load", "value", "ends", "opens", "sweep", "sweep_last")
        while len(landings) < len(passes) or cycle <= landings[-1]:
            ctx.set(dut.landed, cycle in landings)
            flags = ctx.get(dut.flags)
            if flags.row or flags.sweep:
                if at == 0:
                    begun.append(cycle)
                plan = planned(passes[number]) if kinds[number] != "token" else [(0, 0, ())] * 32
                assert flags.first == (at == 0) and flags.last == (at == len(plan) - 1), (number, at)
                if kinds[number] != "token":
                    address, index, expected = plan[at]
                    # flags of what the cycle does not bring mean nothing
                    ignored = ({"wide"} if address < 0 else set()) | ({"sweep_last"} - {*expected})
                    found = {name for name in names if flags[name]}
                    assert found - ignored == {*expected}, (number, at)
                    assert flags.index == index and ctx.get(dut.fetch) == (address >= 0 and (
                        kinds[number] == "commit" or not flags.second)), (number, at)
                    assert address < 0 or ctx.get(dut.address) == address, (number, at)
                    home = address if not {"key", "load", "value", "sweep"} & {*expected} else home
                    if flags.ends:
                        assert ctx.get(dut.home) == home
                at += 1
                if at == len(plan):
                    landings.append(cycle + LATENCY)
                    number, at = number + 1, 0
            await ctx.tick()
            cycle += 1

    simulate(dut, offering(dut, passes), rows, max_cycles=6000)
    for number in range(1, len(passes)):
        if kinds[number] == kinds[number - 1]:
            assert begun[number] <= landings[number - 1] - LATENCY + 1
        else:
            assert begun[number] > landings[number - 1]
