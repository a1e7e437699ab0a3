from __future__ import annotations

import random
import zlib
from typing import Any

import pytest

from statecell_hw.link.crc import Crc
from tests.hw.streams import simulate


@pytest.mark.parametrize("link_bytes", [2, 4, 8, 16])
def test_equals_zlib_for_every_prefix(link_bytes: int) -> None:
    rng = random.Random(link_bytes)
    words = [rng.randbytes(link_bytes) for _ in range(40)] + [bytes(link_bytes), b"\xff" * link_bytes]
    dut = Crc(link_bytes=link_bytes)

    async def bench(ctx: Any) -> None:
        for _ in range(2):  # the second time after a clear
            body = b""
            for word in words:
                assert ctx.get(dut.crc) == zlib.crc32(body)
                ctx.set(dut.data, int.from_bytes(word, "little"))
                ctx.set(dut.en, 1)
                await ctx.tick().repeat(dut.latency)
                ctx.set(dut.en, 0)
                body += word
                if rng.random() < 0.3:
                    await ctx.tick()  # nothing is taken without `en`
            assert ctx.get(dut.crc) == zlib.crc32(body)
            ctx.set(dut.clear, 1)
            await ctx.tick()
            ctx.set(dut.clear, 0)

    simulate(dut, bench)
