"""Area by block: counted by hand on an invented report, and small blocks through Yosys with the real library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import config
from statecell.store.errors import DownloadError
from statecell_boards.asic.library import Library, fetch_library
from statecell_boards.asic.macro import Macro, MacroModel
from statecell_boards.asic.synthesis import Area, Block, area, synthesise
from statecell_boards.asic.timing import analyse, find_sta
from statecell_boards.errors import BoardError
from statecell_hw.array.bank import Bank
from statecell_hw.array.rowstream import RowStream

PERIOD_NS = 8.0
FLOP_UM2 = 96.0
"""DFFPOSX1 in the Liberty file."""


@pytest.fixture(scope="module")
def cells() -> Library:
    try:
        return fetch_library()
    except DownloadError as error:
        pytest.skip(str(error))


def module(um2: float, **kinds: int) -> dict[str, Any]:
    return {"area": um2, "num_cells_by_type": {kind.replace("__", "."): count for kind, count in kinds.items()}}


def test_blocks_are_counted_with_what_is_inside_and_without_memories() -> None:
    rows = Macro(block="tile.keys.memory", width=4, rows=8, address=3)
    stat = {
        "modules": {
            "\\tile": module(1000.0, NAND2X1=2, tile__keys=1, tile__dot=1),
            "\\tile.keys": module(364.0, INVX1=3, tile__keys__memory=1),
            "\\tile.keys.memory": module(320.0 + 20, DFFPOSX1=5, statecell_memory_8x4=1),
            "\\tile.dot": module(600.0, XOR2X1=7),
        }
    }
    found = area(stat, [rows], MacroModel(bit_um2=10.0))
    assert found.blocks == [
        Block(name="tile.dot", cells=7, um2=600.0), Block(name="tile.keys", cells=8, um2=44.0),
        Block(name="tile", cells=2, um2=36.0),
    ]
    assert (found.cells, found.logic_um2, found.memory_um2) == (17, 680.0, 320.0)


class Delay(wiring.Component):
    """Eight registers after one another."""

    i: Signal
    o: Signal

    def __init__(self) -> None:
        super().__init__({"i": In(4), "o": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        value = self.i
        for number in range(8):
            after = Signal(4, name=f"after_{number}", reset_less=True)
            m.d.sync += after.eq(value)
            value = after
        m.d.comb += self.o.eq(value)
        return m


def test_registers_have_their_area(cells: Library, tmp_path: Path) -> None:
    found = synthesise(Delay(), cells, MacroModel(), tmp_path, period_ns=PERIOD_NS)
    assert found == Area(
        blocks=[Block(name="tile", cells=32, um2=32 * FLOP_UM2)], memories=[], bit_um2=MacroModel().bit_um2
    )


def test_a_bank_has_one_macro(cells: Library, tmp_path: Path) -> None:
    g = config("tiny")
    found = synthesise(Bank(g), cells, MacroModel(bit_um2=2.0), tmp_path, period_ns=PERIOD_NS)
    assert [(m.block, m.rows, m.width) for m in found.memories] == [("tile.memory", g.rows, g.row_bits)]
    assert found.memory_um2 == 2.0 * g.rows * g.row_bits
    held = g.row_bits * FLOP_UM2
    assert held < found.logic_um2 < 4 * held, "the memory became flip-flops, or its register vanished"
    try:
        sta = find_sta()
    except (BoardError, DownloadError) as error:
        pytest.skip(str(error))
    slow = MacroModel(bit_um2=2.0, access_ns=7.0)
    synthesise(Bank(g), cells, slow, tmp_path, period_ns=PERIOD_NS)
    timing = analyse(sta, tmp_path, period_ns=PERIOD_NS)
    assert timing.start == "memory/memory" and 7.0 < timing.delay_ns < 7.6


def test_a_memory_of_the_gateware_is_one_macro_a_read_port(cells: Library, tmp_path: Path) -> None:
    g = config("smollm2")
    found = synthesise(RowStream(g), cells, MacroModel(), tmp_path, period_ns=PERIOD_NS)
    assert [(m.rows, m.width) for m in found.memories] == 2 * [(g.slots * g.pages_per_slot, (g.pages - 1).bit_length())]
    assert found.cells < 2000
