from __future__ import annotations

from typing import Any

import pytest
import torch

from statecell.model.recurrent.mode import Mode, Rule, Storage
from statecell.spec.geometry import config
from statecell_hw.recurrent.bankrows import ENTRY, BankRows
from statecell_hw.recurrent.pipeline import MIN_ROWS
from tests.hw.recurrent.ports import row_fields
from tests.hw.recurrent.states import random_state
from tests.hw.rows import row_words
from tests.hw.streams import simulate


@pytest.mark.parametrize(("name", "halves"), [("recur32", 1), ("tiny2", 2)])
def test_rows_of_both_kinds_go_both_ways(name: str, halves: int) -> None:
    """Rows in one plane and in two, from the banks and to them."""
    g = config(name)
    generator = torch.Generator().manual_seed(1)
    state = random_state([Mode(), Mode(storage=Storage.INT8)], Rule(), g, generator, channels=MIN_ROWS,
                         lane_decay=False, halves=halves)
    dut = BankRows(g)

    async def bench(ctx: Any) -> None:
        shape = dut.row.shape()
        for head in range(2):
            words = row_words(state.rows(head), g)
            for row in range(MIN_ROWS * halves):
                wide, odd = head == 1, row % 2
                fields = row_fields(state, head, row)
                if wide:
                    low, high = words[2 * row:2 * row + 2]
                    key, value = high, low
                else:
                    key, value = words[row - odd:row - odd + 2]
                for stored in (0, 1):
                    for port, given in ((dut.valid, 1), (dut.second, odd and not wide), (dut.wide, wide),
                                        (dut.stored, stored), (dut.key, key), (dut.value, value)):
                        ctx.set(port, given)
                    await ctx.tick().repeat(ENTRY)
                    expected = shape.const(fields).as_bits() if stored else 0
                    assert ctx.get(dut.row.as_value()) == expected, (head, row)
                ctx.set(dut.valid, 0)
                ctx.set(dut.write, fields)
                ctx.set(dut.write_odd, odd)
                ctx.set(dut.write_wide, wide)
                for enabled in (0, 1):
                    ctx.set(dut.write_en, enabled)
                    into = ctx.get(dut.write_key_en), ctx.get(dut.write_value_en)
                    assert into == ((enabled, enabled) if wide else (enabled * (1 - odd), enabled * odd))
                if wide or not odd:
                    assert ctx.get(dut.write_key) == key, (head, row)
                if wide or odd:
                    assert ctx.get(dut.write_value) == value, (head, row)

    simulate(dut, bench)
