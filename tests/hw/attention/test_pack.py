from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from statecell.model.normalise import pack_block
from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_hw.attention.pack import BlockPack
from tests.hw.array.vectors import corner_vectors, pack_words, signed_words
from tests.hw.streams import receive, simulate


def vectors_of(bits: int, dim: int, count: int) -> list[torch.Tensor]:
    """Random vectors of every size up to the whole range, and vectors at the edges between two block exponents."""
    rng = torch.Generator().manual_seed(5)
    most = (1 << (bits - 1)) - 1
    out = [*corner_vectors(dim, most), torch.full((dim,), -most - 1)]
    for edge in (formats.VECTOR_BITS - 1, formats.VECTOR_BITS, bits - 2):
        for value in (-1, 0):
            single = torch.zeros(dim, dtype=torch.int64)
            single[edge % dim] = (1 << edge) + value
            out += [single, ~single, -single]
    for _ in range(count):
        size = 2.0 ** torch.empty(1).uniform_(3, bits, generator=rng)
        x = torch.randn(dim, generator=rng) * size / 4
        out.append(x.round().clamp(-most - 1, most).to(torch.int64))
    return out


def run(dut: BlockPack, vectors: list[torch.Tensor], *, pause: float, stall: float,
        seed: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Cycles in which the vectors' last words went in; (cycle, data, block) of the words that came out."""
    g = dut.geometry
    rng = random.Random(seed)
    ended: list[int] = []
    out: list[tuple[int, int, int]] = []
    now = 0

    async def clock(ctx: Any) -> None:
        nonlocal now
        while len(out) < len(vectors) * g.vector_words:
            await ctx.tick()
            now += 1

    async def source(ctx: Any) -> None:
        for vector in vectors:
            while not ctx.get(dut.space) or rng.random() < pause / 4:
                await ctx.tick()
            ctx.set(dut.take, 1)
            for word in pack_words(vector, g.transform_bits, g.word):
                while rng.random() < pause:
                    await ctx.tick()
                    ctx.set(dut.take, 0)
                ctx.set(dut.i_valid, 1)
                ctx.set(dut.i_data.as_value(), word)
                at = now
                await ctx.tick()
                ctx.set(dut.take, 0)
                ctx.set(dut.i_valid, 0)
                ctx.set(dut.i_data.as_value(), rng.getrandbits(g.word * g.transform_bits))
            ended.append(at)

    async def sink(ctx: Any) -> None:
        while len(out) < len(vectors) * g.vector_words:
            if stall and len(out) % (3 * g.vector_words) == g.vector_words - 2:
                # long enough for a new vector to come while the last word of this one waits inside
                await ctx.tick().repeat(3 * g.vector_words)
            word = await receive(ctx, dut.o, rng, stall)
            out.append((now - 1, word.data, word.block))

    simulate(dut, clock, sink, source, max_cycles=20 * len(vectors) * g.vector_words)
    return ended, out


@pytest.mark.parametrize(("name", "pause", "stall"), [
    ("tiny", 0.0, 0.0), ("tiny", 0.3, 0.0), ("tiny", 0.0, 0.5), ("tiny2", 0.3, 0.3), ("tiny2", 0.0, 0.0),
    ("narrow", 0.1, 0.2), ("bench64", 0.0, 0.0), ("bench64", 0.2, 0.4),
])
def test_packer_equals_the_model(name: str, pause: float, stall: float) -> None:
    g = config(name)
    dut = BlockPack(g)
    vectors = vectors_of(g.transform_bits, g.head_dim, 3 if name == "narrow" else 12)
    ended, out = run(dut, vectors, pause=pause, stall=stall, seed=6)
    expected, block = pack_block(torch.stack(vectors))
    values = [v for _, data, _ in out for v in signed_words(data, formats.VECTOR_BITS, g.word)]
    assert torch.equal(torch.tensor(values).reshape(-1, g.head_dim), expected)
    assert [b for _, _, b in out] == block.repeat_interleave(g.vector_words).tolist()
    if not stall:
        begins = [cycle for cycle, _, _ in out[::g.vector_words]]
        assert all(begin >= end + dut.latency for begin, end in zip(begins, ended, strict=True))
        assert begins[0] == ended[0] + dut.latency
        if not pause:
            assert begins == [end + dut.latency for end in ended]
            assert begins[-1] - begins[0] == dut.interval * (len(vectors) - 1)


def test_credits_come_back_and_idle_is_idle() -> None:
    g = config("tiny")
    dut = BlockPack(g)

    async def bench(ctx: Any) -> None:
        assert ctx.get(dut.space) == dut.BUFFERS
        assert ctx.get(dut.idle)
        ctx.set(dut.take, 1)
        for left in range(dut.BUFFERS - 1, -1, -1):
            await ctx.tick()
            assert ctx.get(dut.space) == left
            assert not ctx.get(dut.idle)
        ctx.set(dut.take, 0)
        ctx.set(dut.i_valid, 1)
        await ctx.tick().repeat(dut.BUFFERS * g.vector_words)
        ctx.set(dut.i_valid, 0)
        await ctx.tick().repeat(10)
        # nothing is taken, so that no buffer but the first is even begun
        assert ctx.get(dut.space) == 0
        ctx.set(dut.o.ready, 1)
        await ctx.tick().repeat(dut.BUFFERS * g.vector_words - 1)
        assert ctx.get(dut.o.valid)
        assert not ctx.get(dut.idle)
        await ctx.tick()
        assert ctx.get(dut.space) == dut.BUFFERS
        assert ctx.get(dut.idle)

    simulate(dut, bench)
