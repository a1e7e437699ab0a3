"""Bench of the loop-back: frames through both ends of the link, with stalls, and through a blocking transport."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.task import bridge

from statecell.link.errors import LinkTimeout
from statecell_sim.benches.stream import CocotbTransport, StreamSink, StreamSource, start

STALLS = (0.0, 0.3, 0.8)
SECONDS = 60.0


def frames(rng: random.Random, link_bytes: int, count: int) -> list[bytes]:
    """Random frames of 1 to 12 words."""
    return [rng.randbytes(link_bytes * rng.randrange(1, 13)) for _ in range(count)]


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(idle=STALLS, back_pressure=STALLS)
async def words_come_back(dut: Any, idle: float, back_pressure: float) -> None:
    """Every word comes back in order under every pair of stalls."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    source = StreamSource(dut, idle=idle, seed=cocotb.RANDOM_SEED)
    sink = StreamSink(dut, back_pressure=back_pressure, seed=cocotb.RANDOM_SEED)
    words = [rng.getrandbits(len(dut.i__payload)) for _ in range(100)]
    sender = cocotb.start_soon(source.send(words))
    assert [await sink.receive() for _ in words] == words
    await sender


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def blocking_driver_runs_unchanged(dut: Any) -> None:
    """Blocking code exchanges frames, survives a time-out, and goes on with whole frames."""
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    transport = CocotbTransport(dut, StreamSource(dut, idle=0.3, seed=1), StreamSink(dut, back_pressure=0.3, seed=2))
    sent = frames(rng, transport.link_bytes, 20)

    def drive() -> None:
        assert transport.exchange(sent, timeout=SECONDS) == sent
        assert transport.exchange(sent[:1], timeout=SECONDS) == sent[:1]
        limit, transport.max_cycles = transport.max_cycles, 20
        try:
            transport.exchange(sent, timeout=SECONDS)
        except LinkTimeout:
            transport.max_cycles = limit
        assert transport.max_cycles == limit, "twenty cycles cannot be enough"
        assert transport.exchange(sent[::-1], timeout=SECONDS) == sent[::-1]

    await bridge(drive)()
