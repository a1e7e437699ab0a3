from __future__ import annotations

import random
from typing import Any

import torch

from statecell.model.recurrent.mode import Mode, Rule
from statecell.spec.geometry import config
from statecell_hw.recurrent.pipeline import MIN_ROWS
from statecell_hw.recurrent.status import SlotStatus
from tests.hw.recurrent.ports import row_fields
from tests.hw.recurrent.states import random_state
from tests.hw.streams import simulate

SLOTS, PASSES = 3, 20


def test_registers_change_as_passes_land() -> None:
    """Passes that write, that write nothing, and tokens of a log, over slots that were opened with anything."""
    g = config("recur32")
    rng = random.Random(4)
    state = random_state([Mode()] * PASSES, Rule(), g, torch.Generator().manual_seed(2), channels=MIN_ROWS,
                         lane_decay=False)
    dut = SlotStatus(g, slots=SLOTS)
    held = [{"noise": rng.getrandbits(32), "skipped": rng.randrange(9), "rescaled": rng.randrange(9),
             "energy": rng.getrandbits(50)} for _ in range(SLOTS)]

    async def land(ctx: Any, number: int) -> None:
        slot, kind = rng.randrange(SLOTS), rng.choice(("written", "written", "nothing", "logged", "frozen"))
        mine = held[slot]
        ctx.set(dut.landing, slot)
        await ctx.tick()
        if kind in ("logged", "frozen"):
            ctx.set(dut.logged, 1)
            ctx.set(dut.skips, kind == "frozen")
            mine["skipped"] += kind == "frozen"
            await ctx.tick()
            ctx.set(dut.logged, 0)
            return
        for row in range(MIN_ROWS):
            fresh = [rng.randrange(2) for _ in range(g.groups)]
            ctx.set(dut.write_valid, kind == "written")
            ctx.set(dut.write_row, row_fields(state, number, row))
            for port, one in zip(dut.renewed, fresh, strict=True):
                ctx.set(port, one)
            mine["rescaled"] += sum(fresh) if kind == "written" else 0
            ctx.set(dut.written, row == MIN_ROWS - 1)
            ctx.set(dut.noise, 1000 + number)
            assert ctx.get(dut.landed) == (row == MIN_ROWS - 1)
            await ctx.tick()
        ctx.set(dut.write_valid, 0)
        ctx.set(dut.written, 0)
        if kind == "written":
            mine |= {"noise": 1000 + number, "energy": int(state.row_energy()[number].sum())}
        else:
            mine["skipped"] += 1

    async def bench(ctx: Any) -> None:
        for slot in range(SLOTS):
            ctx.set(dut.open_en, 1)
            ctx.set(dut.open_slot, slot)
            ctx.set(dut.opened, held[slot])
            await ctx.tick()
        ctx.set(dut.open_en, 0)
        for number in range(PASSES):
            await land(ctx, number)
            await ctx.tick().repeat(dut.settling + 1)
            for slot in range(SLOTS):
                ctx.set(dut.shown_slot, slot)
                ctx.set(dut.looks, slot)
                await ctx.tick()
                assert {name: ctx.get(dut.shown[name]) for name in held[slot]} == held[slot], (number, slot)
                assert ctx.get(dut.noise_now) == held[slot]["noise"]

    simulate(dut, bench)
