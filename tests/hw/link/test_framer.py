from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec import frame
from statecell.spec.geometry import Geometry
from statecell_hw.link.framer import Framer
from tests.hw.streams import receive, send, simulate, words_of


def geometry(link_bytes: int) -> Geometry:
    return Geometry(
        name="least", head_dim=32, rows=8, lanes=1, slots=1, pages_per_slot=1, page_rows=8, link_bytes=link_bytes
    )


@pytest.mark.parametrize("pause", [0.0, 0.5])
@pytest.mark.parametrize("link_bytes", [2, 4, 8, 16])
def test_appends_the_crc(link_bytes: int, pause: float) -> None:
    rng = random.Random(link_bytes)
    bodies = [rng.randbytes(16 * blocks) for blocks in (1, 2, 1, 5)]
    dut = Framer(geometry(link_bytes))
    sent = [word for body in bodies for word in words_of(body, link_bytes)]
    expected = [word for body in bodies for word in words_of(frame.seal(body, link_bytes), link_bytes)]

    async def source(ctx: Any) -> None:
        await send(ctx, dut.i, sent, random.Random(1), pause)

    async def sink(ctx: Any) -> None:
        assert ctx.get(dut.idle)
        for word in expected:
            got = await receive(ctx, dut.o, rng, pause)
            assert (got.data, got.last) == (word["data"], word["last"])
        assert ctx.get(dut.idle)

    cycles = simulate(dut, source, sink)
    if not pause:
        assert cycles <= len(expected) + 2  # one word a cycle, trailers included
