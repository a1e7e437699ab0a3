from __future__ import annotations

from typing import Any

from statecell_boards.anchors import fix_places, multiplier_row, ram_row


def test_block_rams_outside_of_the_array_get_the_places_in_the_order_of_their_names() -> None:
    names = ["cell.writer.words.10", "cell.writer.words.9", "tile_0.keys.memory.memory_0.0", "tile_0.softmax.table_0"]
    cells: dict[str, Any] = {name: {"type": "DP16KD", "attributes": {}} for name in [*names, "cell.slots.0"]}
    cells["register"] = {"type": "TRELLIS_FF", "attributes": {}}
    cells["writer.square"] = {"type": "MULT18X18D", "attributes": {}}
    cells["tile_0.dot.sum"] = {"type": "MULT18X18D", "attributes": {}}
    assert fix_places({"modules": {"top": {"cells": cells}}}, ram_row(22, 2), multiplier_row(34, 2)) == 3
    fixed = {name: cell["attributes"].get("BEL") for name, cell in cells.items()}
    assert fixed["cell.slots.0"] == "X4/Y22/EBR0" and fixed["cell.writer.words.9"] == "X6/Y22/EBR1"
    assert fixed["writer.square"] == "X4/Y34/MULT18_0" and fixed["tile_0.dot.sum"] is None
    assert sum(place is not None for place in fixed.values()) == 3


def test_a_row_has_its_52_places() -> None:
    assert multiplier_row(10, 6)[2:] == ("X8/Y10/MULT18_4", "X9/Y10/MULT18_5", "X13/Y10/MULT18_0", "X14/Y10/MULT18_1")
    row = ram_row(46, 52)
    assert row[4] == "X13/Y46/EBR0" and row[27:29] == ("X64/Y46/EBR3", "X69/Y46/EBR0") and row[-1] == "X120/Y46/EBR3"
