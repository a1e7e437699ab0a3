from __future__ import annotations

import random
from typing import Any

import torch

from statecell.model.normalise import reciprocal
from statecell.model.recurrent import factor
from statecell.spec.geometry import config
from statecell_hw.recurrent.factor import INVERSE_SHIFT, Factor
from tests.hw.streams import simulate

EDGES = [1, 2, 3, (1 << 23) - 1, 1 << 23, (1 << 24) - 1]


def test_decayed_factors_and_their_reciprocals() -> None:
    dut = Factor(config("tiny"))
    rng = random.Random(1)
    count = 300
    factors = torch.tensor([[rng.choice((*EDGES, rng.randrange(1 << 23, 1 << 24), rng.randrange(1, 1 << 24)))
                             for _ in range(dut.count)] for _ in range(count)])
    decays = torch.tensor([[rng.choice((*EDGES, 1 << 24, 1 << rng.randrange(25), rng.randrange(1, 1 << 24)))
                            for _ in range(dut.count)] for _ in range(count)])
    decays[::7] = 1 << 24
    after = factor.decayed(factors, decays)
    whole, octaves = factor.normalised(after)
    inverse = reciprocal(whole >> 7 & 0xFFFF) << INVERSE_SHIFT
    assert int(octaves.max()) == 23 and int(octaves.min()) == 0

    async def bench(ctx: Any) -> None:
        for cycle in range(count + dut.latency):
            ctx.set(dut.valid, cycle < count)
            if cycle < count:
                for i in range(dut.count):
                    ctx.set(dut.factor[i], int(factors[cycle, i]))
                    ctx.set(dut.decay[i], int(decays[cycle, i]))
            past = cycle - dut.latency
            assert ctx.get(dut.o_valid) == (past >= 0)
            if past >= 0:
                for ports, values in ((dut.before, factors), (dut.after, after), (dut.whole, whole),
                                      (dut.octaves, octaves), (dut.inverse, inverse)):
                    assert [ctx.get(port) for port in ports] == values[past].tolist()
                assert ctx.get(dut.one) == int((decays[past] == 1 << 24).all())
            await ctx.tick()

    simulate(dut, bench)
