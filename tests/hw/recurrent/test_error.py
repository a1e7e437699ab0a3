from __future__ import annotations

import random
from typing import Any

from statecell.spec import formats
from statecell_hw.recurrent.error import Error
from statecell_hw.recurrent.pipeline import MIN_ROWS
from tests.hw.recurrent.drive import heads_bench
from tests.hw.streams import simulate
from tests.model.oracle import clamp, half_up

HEADS = 24
TOP = (1 << (formats.RECUR_BITS - 1)) - 1


def test_errors_and_outputs_of_both_rules() -> None:
    rng = random.Random(4)
    dut = Error()

    def wide(bits: int) -> int:
        top = (1 << (bits - 1)) - 1
        return rng.choice((top, -top - 1, 0, -1, rng.randint(-top - 1, top), rng.randint(-99, 99)))

    heads: list[dict[str, Any]] = [{
        "mode": {"delta": n % 2}, "beta": rng.choice((0, 1, (1 << 16) - 1, rng.randrange(1 << 16))),
        "mix": wide(formats.MIX_BITS)} for n in range(HEADS)]
    rows = {(head, row): (max(-formats.VECTOR_MAX, wide(16)), wide(24), wide(24))
            for head in range(HEADS) for row in range(MIN_ROWS)}
    seen = set()

    def expected(head: int, row: int) -> tuple[int, int]:
        v, r, o = rows[head, row]
        error = clamp(64 * v - r, 24) if heads[head]["mode"]["delta"] else 64 * v
        d = clamp(half_up(heads[head]["beta"] * error, 14), 24)
        return d, clamp(o + half_up(heads[head]["mix"] * d, 16), 24)

    def row(ctx: Any, head: int, number: int) -> None:
        for port, value in zip((dut.v, dut.r, dut.o_rows), rows[head, number], strict=True):
            ctx.set(port, value)

    def check_d(ctx: Any, head: int, number: int) -> None:
        d, _ = expected(head, number)
        seen.add(d)
        assert ctx.get(dut.d) == d, f"d of row {number} of head {head}"

    def check_o(ctx: Any, head: int, number: int) -> None:
        assert ctx.get(dut.o) == expected(head, number)[1], f"o of row {number} of head {head}"

    bench = heads_bench(dut, HEADS, MIN_ROWS, lambda ctx, head: ctx.set(dut.head, heads[head]), {0: row},
                      {dut.d_latency: check_d, dut.latency: check_o})
    simulate(dut, bench)
    assert {TOP, -TOP - 1, 0} <= seen
