from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from statecell.spec import frame
from statecell.spec.geometry import config
from statecell_hw.control.mapper import Mapper
from tests.hw.streams import send, simulate, words_of


@pytest.mark.parametrize("name", ["tiny", "tiny2", "narrow"])
def test_writes_page_numbers_behind_the_mapped_ones(name: str) -> None:
    g = config(name)
    rng = random.Random(3)
    dut = Mapper(g)
    commands = []
    for _ in range(12):
        have = rng.randrange(g.pages_per_slot)
        pages = [rng.randrange(g.pages) for _ in range(rng.randint(1, g.pages_per_slot - have))]
        if rng.random() < 0.3:
            pages[rng.randrange(len(pages))] = g.pages + rng.choice([0, 1, 1000])
        commands.append((rng.randrange(g.tile_slots), have, pages))
    ended = False

    async def bench(ctx: Any) -> None:
        nonlocal ended
        for slot, have, pages in commands:
            for signal, value in ((dut.slot, slot), (dut.pages, have), (dut.count, len(pages)), (dut.start, 1)):
                ctx.set(signal, value)
            await ctx.tick()
            ctx.set(dut.start, 0)
            payload = frame.pad(struct.pack(f"<{len(pages)}H", *pages)) if rng.random() < 0.8 else b""
            words = [w["data"] for w in words_of(payload, g.link_bytes)]
            written.clear()
            await send(ctx, dut.i, words, rng, 0.2)
            while ctx.get(dut.busy):
                await ctx.tick()
            good = [(slot * g.pages_per_slot + have + i, p) for i, p in enumerate(pages) if p < g.pages]
            assert written == (good if payload else [])
            assert ctx.get(dut.bad) == (bool(payload) and max(pages) >= g.pages)
        ended = True

    written: list[tuple[int, int]] = []

    async def watch(ctx: Any) -> None:
        while not ended:
            _, _, en, index, page = await ctx.tick().sample(dut.table.en, dut.table.index, dut.table.page)
            if en:
                written.append((index, page))

    simulate(dut, bench, watch)
