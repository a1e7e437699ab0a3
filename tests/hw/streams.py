"""Stream helpers of the gateware tests: send words, receive words, with random pauses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from amaranth.hdl import ClockDomain, Module
from amaranth.sim import Simulator

MAX_CYCLES = 100_000


def words_of(frame: bytes, link_bytes: int) -> list[dict[str, int]]:
    """Link words of a frame, `last` in the last one."""
    data = [int.from_bytes(frame[i : i + link_bytes], "little") for i in range(0, len(frame), link_bytes)]
    return [{"data": word, "last": int(i == len(data) - 1)} for i, word in enumerate(data)]


async def send(ctx: Any, stream: Any, payloads: Sequence[Any], rng: random.Random, pause: float) -> None:
    """Offer the payloads, each after a pause with the given probability per cycle; a word offered stays."""
    for payload in payloads:
        while rng.random() < pause:
            await ctx.tick()
        ctx.set(stream.payload, payload)
        ctx.set(stream.valid, 1)
        await ctx.tick().until(stream.ready)
        ctx.set(stream.valid, 0)


async def receive(ctx: Any, stream: Any, rng: random.Random, pause: float) -> Any:
    """The next payload."""
    while rng.random() < pause:
        await ctx.tick()
    ctx.set(stream.ready, 1)
    (payload,) = await ctx.tick().sample(stream.payload).until(stream.valid)
    ctx.set(stream.ready, 0)
    return payload


def no_collision(memory: Any) -> Any:
    """Background bench: no row of a row memory is read in the cycle that writes it, which block RAM leaves open."""

    async def watch(ctx: Any) -> None:
        while True:
            await ctx.tick()
            if ctx.get(memory.read_en) and ctx.get(memory.write_en):
                assert ctx.get(memory.read_row) != ctx.get(memory.write_row), "a row read in the cycle that writes it"

    return watch


def simulate(dut: Any, *benches: Any, background: Sequence[Any] = (), max_cycles: int = MAX_CYCLES) -> int:
    """Run until all benches end and return how many cycles that took; fails after `max_cycles`. What runs in the
    `background` need not end."""
    top = Module()
    top.domains.sync = ClockDomain()  # a block without registers has no clock of its own
    top.submodules.dut = dut
    sim: Any = Simulator(top)
    sim.add_clock(1e-6)
    ended = 0
    cycles = 0

    def counted(bench: Any) -> Any:
        async def run(ctx: Any) -> None:
            nonlocal ended
            await bench(ctx)
            ended += 1

        return run

    async def watchdog(ctx: Any) -> None:
        nonlocal cycles
        while ended < len(benches):
            await ctx.tick()
            cycles += 1
            assert cycles < max_cycles, f"no end after {max_cycles} cycles"

    for bench in benches:
        sim.add_testbench(counted(bench))
    for bench in background:
        sim.add_testbench(bench, background=True)
    sim.add_testbench(watchdog)
    sim.run()
    return cycles
