from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.device import open_state_request
from statecell.spec.commands import StateFlag, StateMode
from statecell.spec.geometry import config
from statecell_hw.recurrent.opening import Opening
from tests.hw.recurrent.payload import payload_words
from tests.hw.streams import simulate


def modes(limit: int, rng: random.Random, count: int) -> list[StateMode]:
    """Good modes, half of them spoilt in one field or one pair of flags."""
    out = []
    for _ in range(count):
        flags = StateFlag(rng.randrange(2048))
        fields: dict[str, int] = {
            "feedback": rng.randint(0, 16) if flags & StateFlag.RESIDUAL else 16, "shift": rng.randrange(16),
            "channels": rng.choice((16, limit, 8 * rng.randint(2, limit // 8))), "first_page": rng.randrange(30),
            "seed": rng.choice((1, (1 << 32) - 1, rng.randrange(1, 1 << 32))), "interval": 1,
        }
        if rng.random() < 0.4:
            fields |= {"interval": rng.choice((2, 32, 128)), "channels": limit // 2}
            if rng.random() < 0.8:
                flags &= ~NOT_LOGGED
        elif rng.random() < 0.6:
            flags &= ~(StateFlag.LANE_DECAY | StateFlag.SUPPLIED)
        if rng.random() < 0.5:
            fields[rng.choice([*fields])] = rng.choice((0, 1, 8, 17, 20, limit + 8, 129, 0xFFFF))
        if rng.random() < 0.1:
            flags = StateFlag(1 << rng.randrange(11, 16))
        out.append(StateMode(flags=flags, **fields))
    return out


NOT_LOGGED = StateFlag.LANE_DECAY | StateFlag.SUPPLIED | StateFlag.HALVES


def takes(mode: StateMode) -> int:
    """Rows of the state and its log."""
    rows = mode.channels if mode.flags & StateFlag.WIDE else mode.channels // 2
    return rows * (1 + bool(mode.flags & StateFlag.HALVES)) + logged(mode)


def logged(mode: StateMode) -> int:
    """Rows of the log."""
    return 2 * mode.interval if mode.interval > 1 else 0


def is_bad(mode: StateMode, rows: int, page_rows: int, limit: int) -> bool:
    """The contract in software."""
    f = mode.flags
    pairs = [StateFlag.FRESH | StateFlag.SUPPLIED, StateFlag.ROTATE | StateFlag.LANE_DECAY,
             StateFlag.HALVES | StateFlag.LANE_DECAY, StateFlag.HALVES | StateFlag.SUPPLIED]
    log = mode.interval > 1 and (mode.channels != limit // 2 or bool(f & NOT_LOGGED))
    feedback = range(17) if f & StateFlag.RESIDUAL else (16,)
    return (
        int(f) >= 2048 or any(f & pair == pair for pair in pairs)
        or bool(f & StateFlag.RESIDUAL and not f & StateFlag.WIDE) or mode.feedback not in feedback
        or mode.shift > 15 or not 16 <= mode.channels <= limit or mode.channels % 8 != 0
        or not 1 <= mode.interval <= 128 or log
        or mode.seed == 0 or mode.first_page * page_rows + takes(mode) > rows
    )


@pytest.mark.parametrize("name", ["recur32", "recur128"])
def test_modes_are_checked_and_unpacked(name: str) -> None:
    g = config(name)
    limit = 2 * g.head_dim
    dut = Opening(g)
    cases = modes(limit, random.Random(4), 400)
    bad = [is_bad(mode, g.rows, g.page_rows, limit) for mode in cases]
    assert 50 < sum(bad) < 350

    async def bench(ctx: Any) -> None:
        for mode, wrong in zip(cases, bad, strict=True):
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            for word in payload_words(open_state_request(0, mode).payload, g.link_bytes):
                ctx.set(dut.i.payload, word)
                ctx.set(dut.i.valid, 1)
                await ctx.tick()
            ctx.set(dut.i.valid, 0)
            assert ctx.get(dut.bad) == int(wrong), mode
            if not wrong:
                check(ctx, mode)

    def check(ctx: Any, mode: StateMode) -> None:
        f = mode.flags
        names = {"delta": StateFlag.DELTA, "wide": StateFlag.WIDE, "blind": StateFlag.RESIDUAL,
                 "fresh": StateFlag.FRESH, "supplied": StateFlag.SUPPLIED, "stochastic": StateFlag.STOCHASTIC}
        for field, flag in names.items():
            assert ctx.get(dut.config.mode[field]) == int(bool(f & flag)), field
        for field, flag in (("rotate", StateFlag.ROTATE), ("lane_decay", StateFlag.LANE_DECAY),
                            ("decay_first", StateFlag.DECAY_FIRST), ("bonus", StateFlag.BONUS),
                            ("halves", StateFlag.HALVES)):
            assert ctx.get(dut.config[field]) == int(bool(f & flag)), field
        d, r, key = g.head_dim, mode.channels, 2 * g.head_dim * (1 + bool(f & StateFlag.HALVES))
        assert ctx.get(dut.config.mode.feedback) == mode.feedback and ctx.get(dut.config.mode.shift) == mode.shift
        assert ctx.get(dut.config.base) == mode.first_page * g.page_rows and ctx.get(dut.config.channels) == r
        assert ctx.get(dut.noise) == mode.seed
        assert ctx.get(dut.rows) == takes(mode)
        assert ctx.get(dut.interval) == ctx.get(dut.config.interval) == mode.interval
        sizes = [16, key, key, 2 * r] + [4 * d] * bool(f & StateFlag.LANE_DECAY) + [key] * bool(
            f & StateFlag.BONUS) + [r * g.groups] * bool(f & StateFlag.SUPPLIED)
        assert ctx.get(dut.blocks) == sum(-(-size // 16) for size in sizes)
        assert ctx.get(dut.outputs) == r // 4
        assert ctx.get(dut.snapshot) == 4 + (d // 4 if f & StateFlag.LANE_DECAY else 1) + logged(mode) // 2

    simulate(dut, bench)
