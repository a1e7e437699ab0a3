"""Bench of the rotation: the transform, exact and rounded, of vectors that come with any gaps."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import torch
from cocotb.triggers import RisingEdge

from statecell.model import rotate as model
from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_sim.benches.pulses import Strobe, bits
from statecell_sim.benches.stream import start
from statecell_sim.benches.vectors import corners, random_vector, words_of

CONFIG = "tiny"
IDLE = (0.0, 0.4)
VECTORS = 60
MOST = (1 << (formats.OUTPUT_BITS - 1)) - 1
"""Largest element of a vector on its way back, in the inverse transform."""


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(idle=IDLE)
async def transforms_equal_the_model(dut: Any, idle: float) -> None:
    """Every word, in W cycles on end, with its marks; ``o_forward`` for vectors of 16 bits."""
    g = config(CONFIG)
    rng = random.Random(cocotb.RANDOM_SEED)
    small = corners(g.head_dim) + [random_vector(rng, g.head_dim) for _ in range(VECTORS)]
    large = corners(g.head_dim, MOST) + [random_vector(rng, g.head_dim, MOST) for _ in range(VECTORS)]
    vectors = small + large
    rng.shuffle(vectors)
    await start(dut)
    source = Strobe(dut, dut.i_valid, dut.i_data, idle=idle, seed=cocotb.RANDOM_SEED)
    words = [w for v in vectors for w in words_of(v.tolist(), formats.OUTPUT_BITS, g.word)]
    sender = cocotb.start_soon(source.send(words))
    for vector in vectors:
        exact = words_of(model.transform(vector).tolist(), g.transform_bits, g.word)
        forward = words_of(model.forward(vector, g).tolist(), formats.VECTOR_BITS, g.word)
        fits = bool((vector.abs() <= torch.tensor(formats.VECTOR_MAX)).all())
        for at in range(g.vector_words):
            for _ in range(100 * g.vector_words):
                await RisingEdge(dut.clk)
                if dut.o_valid.value == 1:
                    break
                assert at == 0, f"a gap before word {at} of a vector"
            else:
                raise AssertionError("no word came out")
            assert (bits(dut.o_first), bits(dut.o_last)) == (at == 0, at == g.vector_words - 1)
            assert bits(dut.o_data) == exact[at], f"word {at} of {vector.tolist()}"
            assert not fits or bits(dut.o_forward) == forward[at], f"rounded word {at} of {vector.tolist()}"
    await sender
    for _ in range(3 * g.vector_words):
        await RisingEdge(dut.clk)
        assert dut.o_valid.value == 0, "more words came out than went in"
