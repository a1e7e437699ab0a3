"""Bench of the whole device: every response equals the integer model's, and the driver runs unchanged."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import cocotb
import numpy as np
import torch
from cocotb.task import bridge

from statecell.device import ArrayFullError, Device, RowRangeError, SlotError
from statecell.link.framing import Request, decode
from statecell.runtime.device_engine import DeviceEngine
from statecell.runtime.engine import Append, Attend, Attended, Engine
from statecell.runtime.model_engine import ModelEngine
from statecell.spec.commands import INFO_FIELDS, Opcode, Status
from statecell.spec.fingerprint import fingerprint
from statecell.spec.geometry import config
from statecell_sim.benches.conversation import Conversation
from statecell_sim.benches.stream import CocotbTransport, StreamSink, StreamSource, start

CONFIG = "tiny"
BUILD_HASH = 0x0123456789ABCDEF
IDLE = (0.0, 0.4)
BACK_PRESSURE = (0.0, 0.5)
COMMANDS = 80
WATCHDOG = 5_000  # cycles: the longest frame is an APPEND of all rows of a slot
SECONDS = 60.0


async def connect(dut: Any, idle: float, back_pressure: float) -> CocotbTransport:
    """A running device behind a link that pauses on both sides."""
    await start(dut)
    seed = cocotb.RANDOM_SEED
    source = StreamSource(dut, idle=idle, seed=seed, watchdog=WATCHDOG)
    return CocotbTransport(dut, source, StreamSink(dut, back_pressure=back_pressure, seed=seed, watchdog=WATCHDOG))


async def check(transport: CocotbTransport, talk: Conversation) -> None:
    """All frames in one pipelined exchange; every response must be the one due, bit for bit."""
    answers = await transport.converse(talk.frames, SECONDS)
    for at, (answer, expected) in enumerate(zip(answers, talk.expected, strict=True)):
        got = decode(answer, transport.link_bytes)
        assert got == expected, f"command {at}, {talk.requests[at].opcode.name}: {got} instead of {expected}"
    golden = talk.golden
    device = await bridge(Device)(transport)
    # A command that waits for the tiles and the row writer, so that the counters have seen everything before.
    await bridge(device.submit)([Request(opcode=Opcode.TRUNCATE, slot=s) for s in range(device.geometry.slots)])
    counted = await bridge(device.counters)()
    read, written = (counted.key_rows, counted.value_rows, counted.passes), counted.rows_written
    assert (*read, written) == (golden.rows_read, golden.rows_read, golden.passes, golden.rows_written)


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(idle=IDLE, back_pressure=BACK_PRESSURE)
async def corners_equal_the_model(dut: Any, idle: float, back_pressure: float) -> None:
    """Corner vectors, equal scores, one row, all rows of the array, lengths at page edges."""
    talk = Conversation(config(CONFIG), cocotb.RANDOM_SEED)
    talk.corners()
    await check(await connect(dut, idle, back_pressure), talk)


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(idle=IDLE, back_pressure=BACK_PRESSURE)
async def random_commands_equal_the_model(dut: Any, idle: float, back_pressure: float) -> None:
    """Random commands, pipelined, with refused commands and damaged frames between them."""
    talk = Conversation(config(CONFIG), cocotb.RANDOM_SEED + round(100 * idle + 10 * back_pressure))
    talk.wander(COMMANDS)
    seen = {r.status for r in talk.expected}
    assert {Status.OK, Status.BAD_CRC} < seen and len(seen) > 4, f"only {seen} occurred; choose another seed"
    await check(await connect(dut, idle, back_pressure), talk)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def driver_runs_unchanged(dut: Any) -> None:
    """The blocking driver: INFO, refusals as exceptions, raw rows, and the engine against the model's engine."""
    transport = await connect(dut, IDLE[-1], BACK_PRESSURE[-1])
    await bridge(drive)(transport)


def drive(transport: CocotbTransport) -> None:
    """What an application does, without a word about the simulation."""
    g = config(CONFIG)
    with Device(transport, timeout=SECONDS) as device:
        info = device.info
        sizes = {name: value for name, value in g.as_dict().items() if name in INFO_FIELDS}
        assert sizes == {name: getattr(info, name) for name in sizes}
        assert info.build_low | info.build_high << 32 == BUILD_HASH
        assert info.fingerprint == fingerprint() and len(astuple(info)) == len(INFO_FIELDS)
        rng = np.random.default_rng(cocotb.RANDOM_SEED)

        def vectors(count: int) -> Any:
            return rng.integers(-9000, 9000, (count, g.head_dim)).astype(np.int16)

        refused(SlotError, lambda: device.truncate(1, 0))
        device.open_slot(1)
        refused(ArrayFullError, lambda: device.append(1, vectors(1), vectors(1)))
        assert device.map_pages(1, [3, 0]) == 2
        k, v = vectors(2), vectors(2)
        assert device.append(1, torch.from_numpy(k), v, wide=True) == 4
        refused(RowRangeError, lambda: device.attend(1, k[:1], [0], [5], 24))
        keys, values = device.read_rows(1, 0, 4)
        assert device.write_rows(1, keys, values) == 8
        assert device.read_rows(1, 4, 4) == (keys, values)
        once = device.attend(1, k, [0, 0], [4, 2], 30)
        again = device.attend(1, k, [4, 4], [8, 6], 30)
        assert np.array_equal(once.out, again.out) and np.array_equal(once.block, again.block)

        engines: tuple[Engine, Engine] = (DeviceEngine(device), ModelEngine(g))
        slot, other = (e.open_slots(2) for e in engines)
        for _ in range(3):
            k, v, q = vectors(5), vectors(5), vectors(2 * g.lanes)
            answers: list[list[Attended | None]] = []
            for engine, slots in zip(engines, (slot, other), strict=True):
                token = engine.length(slots[0])
                end = np.minimum(token + 1 + np.arange(2 * g.lanes), token + 3)
                answers.append(engine.run([
                    Append(slot=slots[0], k=k[:3], v=v[:3]),
                    Append(slot=slots[1], k=k[3:], v=v[3:], wide=True),
                    Attend(slot=slots[0], q=q, start=end - 1, end=end, shift=26),
                    Attend(slot=slots[0], q=q, start=np.zeros_like(end), end=end, shift=27),
                    Attend(slot=slots[1], q=q[:1], start=end[:1] * 0, end=end[:1] * 0 + 2, shift=28),
                ]))
                engine.truncate(slots[0], token + 2)
            for mine, due in zip(*answers, strict=True):
                assert (mine is None) == (due is None)
                if mine is not None and due is not None:
                    assert np.array_equal(mine.out, due.out) and np.array_equal(mine.exponent, due.exponent)


def refused(error: type[Exception], call: Any) -> None:
    """The call must raise this error."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")
