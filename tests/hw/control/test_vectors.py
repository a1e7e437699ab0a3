from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from amaranth.hdl import Module, Signal

from statecell.model import rotate as model
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.rotate import Rotate
from statecell_hw.array.writer import Writer
from statecell_hw.attention.pack import BlockPack
from statecell_hw.control.vectors import Vectors
from tests.hw.streams import simulate

Words = list[list[int]]


class Bench:
    """The arbiter with the real rotation; both destinations keep what they get and free a credit now and then."""

    def __init__(self, g: Geometry) -> None:
        self.g = g
        self.dut, self.rotate = Vectors(g), Rotate(g)
        self.m = Module()
        self.m.submodules.dut = self.dut
        self.m.submodules.rotate = self.rotate
        self.m.d.comb += [
            self.rotate.i_valid.eq(self.dut.rotate_valid),
            self.rotate.i_data.eq(self.dut.rotate_data),
            self.dut.rotated.eq(self.rotate.o_valid),
            self.dut.rotated_last.eq(self.rotate.o_last),
        ]
        self.dummy = Signal()  # gives the module a clock domain of its own logic
        self.m.d.sync += self.dummy.eq(~self.dummy)
        self.written: Words = []
        self.packed: Words = []
        self.jobs: list[int] = []
        self.ended = False

    async def destinations(self, ctx: Any, pause: float) -> None:
        rng = random.Random(8)
        d = self.dut
        spaces = {"writer": Writer.BUFFERS, "pack": BlockPack.BUFFERS}
        waiting = {"writer": 0, "pack": 0}
        done = 0
        ctx.set(d.job.ready, 1)
        while not self.ended:
            ctx.set(d.writer_space, spaces["writer"])
            ctx.set(d.pack_space, spaces["pack"])
            ctx.set(d.writer_done, done)
            _, _, valid, to_pack, last, data, forward, job, lane, w_take, p_take = await ctx.tick().sample(
                self.rotate.o_valid, d.to_pack, self.rotate.o_last, self.rotate.o_data, self.rotate.o_forward,
                d.job.valid & d.job.ready, d.job.payload.lane, d.writer_take, d.pack_take,
            )  # fmt: skip
            assert w_take == job
            done = 0
            for name, take in (("writer", w_take), ("pack", p_take)):
                assert not take or spaces[name]
                spaces[name] -= take
                if waiting[name] and rng.random() >= pause:
                    waiting[name] -= 1
                    spaces[name] += 1
                    done |= name == "writer"
            if job:
                self.jobs.append(lane)
            if valid:
                target = self.packed if to_pack else self.written
                target.append(list(data if to_pack else forward))
                if last:
                    waiting["pack" if to_pack else "writer"] += 1


@pytest.mark.parametrize("pause", [0.0, 0.7])
@pytest.mark.parametrize("name", ["tiny", "tiny2", "narrow"])
def test_vectors_reach_their_destination_rotated(name: str, pause: float) -> None:
    g = config(name)
    rng = random.Random(9)
    bench = Bench(g)
    dut = bench.dut
    inputs = [[rng.randint(-32767, 32767) for _ in range(g.head_dim)] for _ in range(9)]
    limit = 1 << (formats.OUTPUT_BITS - 1)
    results = [[rng.randrange(-limit, limit) for _ in range(g.head_dim)] for _ in range(7)]

    async def source(ctx: Any) -> None:
        for number, vector in enumerate(inputs):
            for index in range(0, g.head_dim, g.word):
                while rng.random() < pause:
                    await ctx.tick()
                word = sum((x & 0xFFFF) << (16 * i) for i, x in enumerate(vector[index : index + g.word]))
                lane = number % g.lanes
                ctx.set(dut.i.payload, {"data": word, "first": int(index == 0), "job": {"lane": lane}})
                ctx.set(dut.i.valid, 1)
                await ctx.tick().until(dut.i.ready)
                ctx.set(dut.i.valid, 0)

    async def tiles(ctx: Any) -> None:
        mine = random.Random(10)
        for vector in results:
            for index in range(0, g.head_dim, g.word):
                while mine.random() < pause:
                    await ctx.tick()
                ctx.set(dut.results.payload, {"data": vector[index : index + g.word]})
                ctx.set(dut.results.valid, 1)
                await ctx.tick().until(dut.results.ready)
                ctx.set(dut.results.valid, 0)

    async def end(ctx: Any) -> None:
        total = g.vector_words
        while len(bench.written) < total * len(inputs) or len(bench.packed) < total * len(results):
            await ctx.tick()
        while not ctx.get(dut.idle):
            await ctx.tick()
        bench.ended = True

    async def destinations(ctx: Any) -> None:
        await bench.destinations(ctx, pause)

    simulate(bench.m, source, tiles, end, destinations)
    flat = torch.tensor(bench.written).reshape(len(inputs), g.head_dim)
    assert torch.equal(flat, model.forward(torch.tensor(inputs), g))
    assert torch.equal(
        torch.tensor(bench.packed).reshape(len(results), g.head_dim), model.transform(torch.tensor(results))
    )
    assert bench.jobs == [i % g.lanes for i in range(len(inputs))]


@pytest.mark.parametrize("quiet", [0, 1])
def test_half_a_vector_holds_up_no_result(quiet: int) -> None:
    g = config("tiny")
    bench = Bench(g)
    dut = bench.dut

    async def run(ctx: Any) -> None:
        ctx.set(dut.quiet, quiet)
        ctx.set(dut.writer_space, 1)
        ctx.set(dut.pack_space, 1)
        ctx.set(dut.job.ready, 1)
        ctx.set(dut.i.payload, {"data": 1, "first": 1})
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        # Quiet: the word goes on in the next cycle. Otherwise it waits, and a result passes it.
        assert ctx.get(dut.rotate_valid) == quiet
        if not quiet:
            ctx.set(dut.results.valid, 1)
            for _ in range(g.vector_words):
                assert ctx.get(dut.results.ready)
                await ctx.tick()

    simulate(bench.m, run)
