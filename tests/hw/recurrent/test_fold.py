from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import pytest

from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_hw.recurrent.fold import Fold
from tests.hw.recurrent.ports import scale_fields
from tests.hw.streams import simulate

HEADS, CHANNELS = 5, 16
TWO = Fraction(2)


@pytest.mark.parametrize(("name", "lead"), [("tiny", 13), ("bench64", 20), ("bench64", 13)])
def test_gains_of_commits(name: str, lead: int) -> None:
    """Logs of many lengths, channel after channel without a pause; the formulas of docs/numerics.md, 8.6."""
    g = config(name)
    rng = random.Random(3)
    dut = Fold(g, lead=lead, raised_latency=11, latency=13)
    raises = set()

    def scale() -> int:
        return rng.choice((0, 127 - 8, 128, rng.randrange(120) + 128 * rng.randrange(2)))

    def near(middle: int) -> int:
        return (max(0, min(14, middle + rng.randrange(-2, 3))) << 3) + rng.randrange(8) + 128 * rng.randrange(2)

    async def commit(ctx: Any, head: int) -> None:
        count = (1, 2, 5, 33, formats.LOG_MAX)[head % 5]
        octaves, shift, middle = rng.choice((0, 3, 31)), rng.randrange(16), rng.randrange(15)
        values = [([rng.choice((-128, 119, 0, rng.randint(-128, 119))) for _ in range(g.head_dim)],
                   [scale() if head % 2 else near(middle) for _ in range(g.groups)]) for _ in range(count)]
        keys = [([scale() if head % 2 else near(14) for _ in range(g.groups)],
                 rng.choice((0, 1, 63, rng.randrange(20)))) for _ in range(count)]
        rows = [[scale() if head % 2 else near(middle - 3) for _ in range(g.groups)] for _ in range(CHANNELS)]
        channels = rng.sample(range(g.head_dim), CHANNELS)

        def expected(row: int, group: int) -> tuple[int, int, int, list[int]]:
            """(octaves raised, working exponent, fall, gains)."""
            own, channel = rows[row][group], channels[row]
            products, powers = [], []
            for (codes, scales), (of_key, below) in zip(values, keys, strict=True):
                value, key = scales[channel // g.group], of_key[group]
                sign = (-1) ** ((value >> 7) + (key >> 7))
                products.append(sign * codes[channel] * (8 + value % 8) * (8 + key % 8))
                powers.append((value >> 3 & 15) + (key >> 3 & 15) - below)
            total = sum(math.floor(abs(a) * TWO**p) for a, p in zip(products, powers, strict=True))
            reciprocal = round(Fraction(1 << 18, 8 + own % 8))
            top = math.floor(total * TWO ** (16 - total.bit_length()))
            size = total.bit_length() - 16 + (top * reciprocal).bit_length() - 4
            exponent = max(0, (own >> 3 & 15) - octaves)
            place = exponent + shift + 26
            raised = max(0, size - place - 12) if total else 0
            gains = [math.floor((-1) ** (own >> 7) * a * reciprocal * TWO ** (p - 4 - place - raised) + Fraction(1, 2))
                     for a, p in zip(products, powers, strict=True)]
            down = max(0, octaves - (own >> 3 & 15))
            return raised, exponent + raised, min(14, raised + down), gains

        # a cycle's work in order: the log, a sweep, then for each row it, and its keys while the next one is swept
        plan = [("value", i, 0) for i in range(count)] + [("key", i, 0) for i in range(count)]
        plan += [("sweep", 0, i) for i in range(count)]
        for row in range(CHANNELS):
            plan += [("row", row, 0), *(("fold", row, i) for i in range(count))]
        extra = lead - 1
        for cycle in range(-1, len(plan) + extra + dut.latency + 1):
            # the path's rows come `lead` cycles after what the sweeps see, less the cycle from a sweep to its row
            early = plan[cycle] if 0 <= cycle < len(plan) else ("", 0, 0)
            late = plan[cycle - extra] if 0 <= cycle - extra < len(plan) else ("", 0, 0)
            following = plan[cycle - extra + 1] if 0 <= cycle - extra + 1 < len(plan) else ("", 0, 0)
            ctx.set(dut.swap, following == ("row", 0, 0))
            if late == ("row", 0, 0):
                ctx.set(dut.octaves, octaves)
                ctx.set(dut.shift, shift)
            ctx.set(dut.value_en, early[0] == "value")
            ctx.set(dut.key_en, early[0] == "key")
            if early[0] == "value":
                ctx.set(dut.index, early[1])
                for port, code in zip(dut.codes, values[early[1]][0], strict=True):
                    ctx.set(port, code)
                for port, byte in zip(dut.value_scales, values[early[1]][1], strict=True):
                    ctx.set(port, scale_fields(byte))
            if early[0] == "key":
                ctx.set(dut.key_index, early[1])
                ctx.set(dut.below, keys[early[1]][1])
                for port, byte in zip(dut.key_scales, keys[early[1]][0], strict=True):
                    ctx.set(port, scale_fields(byte))
            swept = early[1] if early[0] == "sweep" else early[1] + 1
            ctx.set(dut.sweep, early[0] == "sweep" or (early[0] == "fold" and swept < CHANNELS))
            if early[0] in ("sweep", "fold"):
                ctx.set(dut.channel, channels[min(swept, CHANNELS - 1)])
                ctx.set(dut.swept, early[2])
                ctx.set(dut.sweep_last, early[2] == count - 1)
            ctx.set(dut.valid, late[0] == "row")
            ctx.set(dut.key_valid, late[0] == "fold")
            if late[0] == "row":
                for port, byte in zip(dut.scales, rows[late[1]], strict=True):
                    ctx.set(port, scale_fields(byte))
            for latency, what in ((dut.raised_latency, "row"), (dut.latency, "fold")):
                past = cycle - extra - latency
                if 0 <= past < len(plan) and plan[past][0] == what:
                    check(ctx, plan[past], [expected(plan[past][1], i) for i in range(g.groups)])
            await ctx.tick()

    def check(ctx: Any, at: tuple[str, int, int], want: list[tuple[int, int, int, list[int]]]) -> None:
        for group, (raised, exponent, fall, gains) in enumerate(want):
            if at[0] == "row":
                raises.add(raised)
                got = ctx.get(dut.raised[group]), ctx.get(dut.exponent[group]), ctx.get(dut.fall[group])
                assert got == (int(raised > 0), exponent, fall), at
            else:
                assert ctx.get(dut.gain[group]) == gains[at[2]], at

    async def bench(ctx: Any) -> None:
        for head in range(2 * HEADS):
            await commit(ctx, head)

    simulate(dut, bench)
    assert 0 in raises and max(raises) > 8
