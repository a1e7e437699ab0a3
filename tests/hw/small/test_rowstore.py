from __future__ import annotations

import random
from typing import Any

import pytest

from statecell_hw.small.rowstore import NIBBLE_BITS, NIBBLES, RowStore
from tests.hw.small.interpreter import signed
from tests.hw.streams import simulate

WORDS = 64


@pytest.mark.parametrize("count", [2000])
def test_words_and_nibbles_at_the_address(count: int) -> None:
    rng = random.Random(4)
    memory: dict[int, int] = {}
    dut = RowStore(WORDS)
    inputs = (dut.seek, dut.next_nibble, dut.next_word, dut.write)

    async def bench(ctx: Any) -> None:
        at, place, known = 0, 0, False
        for _ in range(count):
            move = rng.choice([None, *inputs])
            address, data = rng.randrange(WORDS), rng.getrandbits(16)
            ctx.set(dut.address, address)
            ctx.set(dut.data, data)
            for signal in inputs:
                ctx.set(signal, signal is move)
            if known and at in memory:
                assert ctx.get(dut.word) == memory[at]
                assert ctx.get(dut.nibble) == signed(memory[at] >> (NIBBLE_BITS * place), NIBBLE_BITS)
            if move is dut.write:
                memory[at] = data
            known = move is not dut.write
            if move is dut.seek:
                at, place = address, 0
            elif move is dut.next_nibble:
                at, place = (at + (place + 1) // NIBBLES) % WORDS, (place + 1) % NIBBLES
            elif move is not None:
                at, place = (at + 1) % WORDS, 0
            await ctx.tick()

    simulate(dut, bench)
    assert len(memory) > WORDS // 2
