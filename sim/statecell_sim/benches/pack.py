"""Bench of the block packer: block exponents and shifted vectors under gaps, credits and back-pressure."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge

from statecell.model.normalise import pack_block
from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_hw.attention.pack import BlockPack, packed_layout
from statecell_sim.benches.pulses import Strobe, bits, constant, pulse_when
from statecell_sim.benches.stream import StreamSink, start
from statecell_sim.benches.vectors import corners, random_vector, words_of

CONFIG = "tiny"
IDLE = (0.0, 0.3)
BACK_PRESSURE = (0.0, 0.6)
VECTORS = 60
WATCHDOG = 2_000


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(idle=IDLE, back_pressure=BACK_PRESSURE)
async def packed_vectors_equal_the_model(dut: Any, idle: float, back_pressure: float) -> None:
    """Every word and its exponent, in order; all credits come back."""
    g = config(CONFIG)
    seed = cocotb.RANDOM_SEED
    rng = random.Random(seed)
    most = (1 << (g.transform_bits - 1)) - 1
    vectors = corners(g.head_dim, most) + corners(g.head_dim, 1 << (formats.VECTOR_BITS - 1))
    vectors += [random_vector(rng, g.head_dim, most) for _ in range(VECTORS)]
    rng.shuffle(vectors)
    await start(dut)
    assert bits(dut.space) == BlockPack.BUFFERS
    source = Strobe(dut, dut.i_valid, dut.i_data, idle=idle, seed=seed)
    sink = StreamSink(dut, back_pressure=back_pressure, seed=seed, watchdog=WATCHDOG)

    async def send() -> None:
        for vector in vectors:
            await pulse_when(
                dut.clk, dut.take, lambda: bits(dut.space) > 0 and rng.random() >= idle, watchdog=WATCHDOG
            )
            await source.send(words_of(vector.tolist(), g.transform_bits, g.word))

    sender = cocotb.start_soon(send())
    layout = packed_layout(g)
    for vector in vectors:
        packed, block = pack_block(vector)
        for at, data in enumerate(words_of(packed.tolist(), formats.VECTOR_BITS, g.word)):
            word = await sink.receive()
            due = constant(layout, {"data": data, "block": int(block)})
            assert word == due, f"word {at} is {word:#x} instead of {due:#x}: {vector.tolist()}"
    await sender
    for _ in range(2 * g.vector_words):
        assert await sink.poll() is None, "more words came out than went in"
    await RisingEdge(dut.clk)
    assert (bits(dut.space), bits(dut.idle)) == (BlockPack.BUFFERS, 1)
