from __future__ import annotations

from typing import Any

import torch
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.model import quantise
from statecell.spec import formats
from statecell_hw.array.scale import CODE_BITS, smallest_scale
from tests.hw.streams import simulate


class Scales(wiring.Component):
    magnitude: Signal
    code: Signal

    def __init__(self) -> None:
        super().__init__({"magnitude": In(formats.VECTOR_BITS), "code": Out(CODE_BITS)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.code.eq(smallest_scale(m, self.magnitude))
        return m


def test_smallest_scale_equals_the_model_around_every_code() -> None:
    codes = range(formats.SCALE_MAGNITUDE_MAX + 1)
    edges = [int((8 + (code & 7)) * 2.0 ** ((code >> 3) - formats.SCALE_MANTISSA)) for code in codes]
    near = {edge + d for edge in edges for d in (-1, 0, 1, 2)}
    magnitudes = sorted({0, (1 << formats.VECTOR_BITS) - 1, *near} - {-1})
    dut = Scales()
    got: list[int] = []

    async def bench(ctx: Any) -> None:
        for magnitude in magnitudes:
            ctx.set(dut.magnitude, magnitude)
            await ctx.tick()
            got.append(ctx.get(dut.code))

    simulate(dut, bench)
    assert got == quantise.smallest_scale(torch.tensor(magnitudes)).tolist()
    # below 8 the integers lie further apart than the codes
    assert set(codes[formats.SCALE_MANTISSA << formats.SCALE_MANTISSA:]) <= set(got)
