from __future__ import annotations

import random
from typing import Any

from statecell_hw.small.alu import Alu
from statecell_hw.small.isa import Op
from tests.hw.small.interpreter import signed
from tests.hw.streams import simulate

CORNERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**15 - 1, -(2**15), 2**15, 2**16, -(2**16))
TABLE = 0x5A5A


def results(a: int, b: int) -> dict[Op, int]:
    return {
        Op.LD: b, Op.ADD: signed(a + b, 32), Op.SUB: signed(a - b, 32), Op.AND: a & b, Op.MIN: min(a, b),
        Op.MAX: max(a, b), Op.ASR: a >> (b & 31), Op.MUL: signed(a * signed(b, 16), 32), Op.TAB: TABLE,
    }  # fmt: skip


def test_every_operation_on_corners_and_random_words() -> None:
    rng = random.Random(3)
    pairs = [(a, b) for a in CORNERS for b in CORNERS]
    words = [signed(rng.getrandbits(32), 32) for _ in range(400)]
    pairs += [(a >> rng.randrange(31), b) for a, b in zip(words[::2], words[1::2], strict=True)]
    dut = Alu()

    async def bench(ctx: Any) -> None:
        ctx.set(dut.table, TABLE)
        for a, b in pairs:
            ctx.set(dut.a, a)
            ctx.set(dut.b, b)
            for _ in range(dut.latency):
                await ctx.tick()
            for op, expected in results(a, b).items():
                ctx.set(dut.op, op)
                assert ctx.get(dut.result) == expected, (op.name, a, b)

    simulate(dut, bench)


def test_the_product_is_that_of_the_operands_before() -> None:
    """So long ago as `latency` says, and no longer."""
    dut = Alu()
    given = [(index * 1001 - 7000, 3 * index - 20) for index in range(16)]

    async def bench(ctx: Any) -> None:
        ctx.set(dut.op, Op.MUL)
        for index, (a, b) in enumerate(given):
            ctx.set(dut.a, a)
            ctx.set(dut.b, b)
            if index >= dut.latency:
                earlier = given[index - dut.latency]
                assert ctx.get(dut.result) == earlier[0] * earlier[1]
            await ctx.tick()

    simulate(dut, bench)
