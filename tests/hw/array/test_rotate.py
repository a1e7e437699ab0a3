from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from statecell.model import rotate as model
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.rotate import Rotate
from tests.hw.array.vectors import corner_vectors, pack_words, random_vectors, signed_words
from tests.hw.streams import simulate

MOST = (1 << (formats.OUTPUT_BITS - 1)) - 1


def run(dut: Rotate, vectors: list[torch.Tensor], pause: float, seed: int) -> tuple[list[int], list[dict[str, int]]]:
    """Cycles in which the vectors' last words went in; words that came out, with their cycles."""
    g = dut.geometry
    rng = random.Random(seed)
    words = [w for v in vectors for w in pack_words(v, formats.OUTPUT_BITS, g.word)]
    ended: list[int] = []
    out: list[dict[str, int]] = []

    async def bench(ctx: Any) -> None:
        cycle = sent = 0
        while len(out) < len(words):
            go = sent < len(words) and rng.random() >= pause
            ctx.set(dut.i_valid, go)
            ctx.set(dut.i_data.as_value(), words[sent] if go else rng.getrandbits(g.word * formats.OUTPUT_BITS))
            if go:
                sent += 1
                if sent % g.vector_words == 0:
                    ended.append(cycle)
            _, _, valid, first, last, raw, forward = await ctx.tick().sample(
                dut.o_valid, dut.o_first, dut.o_last, dut.o_data.as_value(), dut.o_forward.as_value())
            if valid:
                out.append({"cycle": cycle, "first": first, "last": last, "raw": raw, "forward": forward})
            cycle += 1

    simulate(dut, bench, max_cycles=10 * len(words) + 100)
    return ended, out


def elements(g: Geometry, out: list[dict[str, int]], name: str, bits: int) -> torch.Tensor:
    values = [v for word in out for v in signed_words(word[name], bits, g.word)]
    return torch.tensor(values).reshape(-1, g.head_dim)


@pytest.mark.parametrize("name", ["tiny", "tiny2", "narrow", "bench64", "wide128"])
@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_forward_rotation_equals_the_model(name: str, pause: float) -> None:
    g = config(name)
    vectors = corner_vectors(g.head_dim)[:6] + random_vectors(g, 6, seed=1)
    dut = Rotate(g)
    ended, out = run(dut, vectors, pause, seed=2)
    expected = torch.stack(vectors)
    assert torch.equal(elements(g, out, "raw", g.transform_bits), model.transform(expected))
    assert torch.equal(elements(g, out, "forward", formats.VECTOR_BITS), model.forward(expected, g))
    words = g.vector_words
    begins = [word["cycle"] for word in out[::words]]
    assert begins == [cycle + dut.latency for cycle in ended]
    for i, word in enumerate(out):
        assert word["cycle"] == begins[i // words] + i % words
        assert (word["first"], word["last"]) == (i % words == 0, i % words == words - 1)
    if pause == 0:
        assert begins[-1] - begins[0] == dut.interval * (len(vectors) - 1)


@pytest.mark.parametrize("name", ["tiny2", "bench64"])
def test_transform_is_exact_at_the_full_width(name: str) -> None:
    g = config(name)
    rng = torch.Generator().manual_seed(3)
    vectors = [*corner_vectors(g.head_dim, MOST), torch.full((g.head_dim,), -MOST - 1),
               *torch.randint(-MOST - 1, MOST + 1, (3, g.head_dim), generator=rng)]
    _, out = run(Rotate(g), vectors, 0.2, seed=4)
    assert torch.equal(elements(g, out, "raw", g.transform_bits), model.transform(torch.stack(vectors)))
