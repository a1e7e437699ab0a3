from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import pytest

from statecell.spec.geometry import config
from statecell_hw.recurrent.gain import Gain
from statecell_hw.recurrent.operands import HALVES
from statecell_hw.recurrent.pipeline import MIN_ROWS
from tests.hw.recurrent.drive import heads_bench
from tests.hw.recurrent.ports import scale_fields
from tests.hw.streams import simulate

HEADS = 60


@pytest.mark.parametrize("name", ["tiny", "bench64"])
def test_gains_and_working_exponents(name: str) -> None:
    g = config(name)
    rng = random.Random(7)
    dut = Gain(g)

    def scale() -> int:
        return rng.choice((0, 127 - 8, 128, rng.randrange(120) + 128 * rng.randrange(2)))

    heads = [(rng.choice((0, 1, 23, rng.randrange(24))), rng.choice((0, 15, rng.randrange(16))),
              [[scale() for _ in range(g.groups)] for _ in range(HALVES)]) for _ in range(HEADS)]
    top = (1 << 23) - 1
    rows = {(head, row): ([scale() for _ in range(g.groups)],
                          rng.choice((top, -top - 1, 0, 1, -1, 1 << rng.randrange(23), rng.randint(-top, top))))
            for head in range(HEADS) for row in range(MIN_ROWS)}
    halves = {place: rng.randrange(HALVES) for place in rows}
    raises = set()

    def expected(head: int, row: int, group: int) -> tuple[int, int, int]:
        """(octaves raised, working exponent, gain): docs/numerics.md, 8.4."""
        octaves, shift, keys = heads[head]
        scales, d = rows[head, row]
        key, own = keys[halves[head, row]][group], scales[group]
        sign = (-1) ** ((key >> 7) + (own >> 7))
        a = sign * d * (8 + key % 8) * round(Fraction(1 << 18, 8 + own % 8))
        exponent = max(0, (own >> 3 & 15) - octaves)
        place = exponent + shift + 26
        total = abs(a) >> (14 - (key >> 3 & 15))
        raised = max(0, total.bit_length() + 14 - place - 12)
        gain = math.floor(a * Fraction(2) ** ((key >> 3 & 15) - place - raised) + Fraction(1, 2))
        return raised, exponent + raised, gain

    def operands(ctx: Any, head: int) -> None:
        ctx.set(dut.octaves, heads[head][0])
        ctx.set(dut.shift, heads[head][1])
        for half, scales in zip(dut.key, heads[head][2], strict=True):
            for port, byte in zip(half, scales, strict=True):
                ctx.set(port, scale_fields(byte))

    def set_scales(ctx: Any, head: int, row: int) -> None:
        ctx.set(dut.half, halves[head, row])
        for port, byte in zip(dut.scales, rows[head, row][0], strict=True):
            ctx.set(port, scale_fields(byte))

    def check_exponent(ctx: Any, head: int, row: int) -> None:
        for group in range(g.groups):
            raised, exponent, _ = expected(head, row, group)
            raises.add(raised)
            down = max(0, heads[head][0] - (rows[head, row][0][group] >> 3 & 15))
            got = ctx.get(dut.raised[group]), ctx.get(dut.exponent[group]), ctx.get(dut.fall[group])
            assert got == (int(raised > 0), exponent, min(14, raised + down)), f"row {row} of head {head}"

    def check_gain(ctx: Any, head: int, row: int) -> None:
        for group in range(g.groups):
            assert ctx.get(dut.gain[group]) == expected(head, row, group)[2], f"row {row} of head {head}"

    bench = heads_bench(dut, HEADS, MIN_ROWS, operands,
                      {0: set_scales, dut.lead: lambda ctx, head, row: ctx.set(dut.d, rows[head, row][1])},
                      {dut.raised_latency: check_exponent, dut.latency: check_gain})
    simulate(dut, bench)
    assert 0 in raises and max(raises) > 15
