from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Module

from statecell.spec.serial import BREAK_BITS, FRACTION_BITS, LEAST_DIVISOR
from statecell_hw.link.uart import FRAME_BITS, UartReceiver, UartTransmitter
from tests.hw.streams import send, simulate

CYCLE = 1 << FRACTION_BITS
DIVISORS = [LEAST_DIVISOR, LEAST_DIVISOR + 5, 9 * CYCLE + 3, 25 * CYCLE + 11]


async def line(ctx: Any, dut: UartReceiver, levels: list[int], bit: float, flips: random.Random | None = None) -> None:
    """Put levels on the line, `bit` cycles each (a fraction is kept); with `flips` one sample of each bit is wrong."""
    end, cycle = 0.0, 0
    for level in levels:
        end += bit
        count = round(end) - cycle
        wrong = flips.randrange(count) if flips else -1
        for at in range(count):
            ctx.set(dut.rx, level ^ (at == wrong))
            await ctx.tick()
        cycle = round(end)


def bits(data: bytes, gap: int = 0) -> list[int]:
    """Levels of the line: start bit, eight bits from the lowest, stop bit, and `gap` idle bits."""
    return [level for byte in data for level in [0, *((byte >> i) & 1 for i in range(8)), 1, *[1] * gap]]


def listen(dut: UartReceiver, got: list[Any], stop: list[bool]) -> Any:
    """A bench that notes bytes, "framing" and "broken" until `stop` is filled."""

    async def run(ctx: Any) -> None:
        while not stop:
            _, _, valid, data, framing, broken = await ctx.tick().sample(dut.valid, dut.data, dut.framing, dut.broken)
            got.extend([data] * valid + ["framing"] * framing + ["broken"] * broken)

    return run


def heard(dut: UartReceiver, drive: Any) -> list[Any]:
    """What the receiver makes of the line that `drive` drives."""
    got: list[Any] = []
    stop: list[bool] = []

    async def source(ctx: Any) -> None:
        await drive(ctx)
        await ctx.tick().repeat(4 * 400)
        stop.append(True)

    simulate(dut, source, listen(dut, got, stop))
    return got


@pytest.mark.parametrize("skew", [-0.025, 0.0, 0.025])
@pytest.mark.parametrize("divisor", DIVISORS)
def test_receives_at_rates_a_little_off(divisor: int, skew: float) -> None:
    data = bytes([0, 255, 0x55, 0xAA]) + random.Random(divisor).randbytes(40)
    dut = UartReceiver()

    async def drive(ctx: Any) -> None:
        ctx.set(dut.divisor, divisor)
        await line(ctx, dut, [1] * 3 + bits(data), divisor / CYCLE * (1 + skew))
        ctx.set(dut.rx, 1)

    assert heard(dut, drive) == list(data)


def test_one_wrong_sample_in_a_bit_and_short_glitches_do_no_harm() -> None:
    data = random.Random(8).randbytes(30)
    dut = UartReceiver()
    divisor = 25 * CYCLE

    async def drive(ctx: Any) -> None:
        ctx.set(dut.divisor, divisor)
        for low in range(1, 11):  # too short to be a start bit
            await line(ctx, dut, [0], low)
            await line(ctx, dut, [1], 25)
        await line(ctx, dut, bits(data, gap=1), 25, flips=random.Random(9))

    assert heard(dut, drive) == list(data)


def test_a_byte_without_stop_bit_is_dropped() -> None:
    dut = UartReceiver()

    async def drive(ctx: Any) -> None:
        ctx.set(dut.divisor, LEAST_DIVISOR)
        await line(ctx, dut, [1, *bits(b"\x41")[:-1], 0, 1, 1, *bits(b"\x42"), 1], 8)

    assert heard(dut, drive) == ["framing", 0x42]


@pytest.mark.parametrize("low", [FRAME_BITS, BREAK_BITS - 1, BREAK_BITS + 1, 5 * BREAK_BITS])
def test_a_break_is_told_once(low: int) -> None:
    dut = UartReceiver()

    async def drive(ctx: Any) -> None:
        ctx.set(dut.divisor, LEAST_DIVISOR + 3)
        await line(ctx, dut, [1, *[0] * low, 1, 1, *bits(b"\x42"), 1], (LEAST_DIVISOR + 3) / CYCLE)

    assert heard(dut, drive) == ["framing", *["broken"] * (low > BREAK_BITS), 0x42]


def test_a_zero_byte_at_half_the_rate_is_a_break() -> None:
    dut = UartReceiver()

    async def drive(ctx: Any) -> None:
        ctx.set(dut.divisor, LEAST_DIVISOR)
        await line(ctx, dut, [1, *bits(b"\0"), 1], 2 * 8)

    assert "broken" in heard(dut, drive)


def test_the_output_is_late_by_the_stated_cycles() -> None:
    dut = UartReceiver()
    cycles: list[int] = []

    async def watch(ctx: Any) -> None:
        ctx.set(dut.divisor, 20 * CYCLE)
        for cycle in range(400):
            ctx.set(dut.rx, not 10 <= cycle < 10 + 20)  # 0xFF
            valid = ctx.get(dut.valid)
            if valid:
                cycles.append(cycle)
            await ctx.tick()

    simulate(dut, watch)
    assert cycles == [10 + 9 * 20 + 10 + dut.latency]


@pytest.mark.parametrize("divisor", DIVISORS)
def test_transmits_back_to_back_without_drift(divisor: int) -> None:
    data = random.Random(divisor).randbytes(50)
    dut = UartTransmitter()
    levels: list[int] = []

    async def source(ctx: Any) -> None:
        assert ctx.get(dut.tx) and ctx.get(dut.idle)
        ctx.set(dut.divisor, divisor)
        await send(ctx, dut.i, list(data), random.Random(1), 0)

    async def watch(ctx: Any) -> None:
        while ctx.get(dut.tx):
            await ctx.tick()
        for _ in range(len(data) * FRAME_BITS * divisor // CYCLE + 40):
            levels.append(ctx.get(dut.tx))
            await ctx.tick()
        assert ctx.get(dut.idle)

    simulate(dut, source, watch)
    due = bits(data)
    # The middle of every bit, counted from the first start bit: an error of the fraction would add up.
    assert [levels[int((i + 0.5) * divisor / CYCLE)] for i in range(len(due))] == due
    assert all(levels[int(len(due) * divisor / CYCLE) + 1 :])


def test_what_is_sent_is_received() -> None:
    data = random.Random(4).randbytes(60)
    sender, receiver = UartTransmitter(), UartReceiver()
    got: list[Any] = []
    stop: list[bool] = []
    rng = random.Random(2)
    m = Module()
    m.submodules.sender, m.submodules.receiver = sender, receiver
    m.d.comb += receiver.rx.eq(sender.tx)

    async def source(ctx: Any) -> None:
        ctx.set(sender.divisor, 150)
        ctx.set(receiver.divisor, 150)
        await send(ctx, sender.i, list(data), rng, 0.1)
        await ctx.tick().repeat(400)
        stop.append(True)

    simulate(m, source, listen(receiver, got, stop))
    assert got == list(data)
