from __future__ import annotations

from typing import Any

from statecell_boards.floorplan import lfe5u_85f, multiplier, ram

PARTS = 31  # block RAMs of a segment


def netlist() -> dict[str, Any]:
    names = [(f"cell.tile_0.{bank}.memory.memory_{segment}.0.{part}", "DP16KD")
             for bank in ("keys", "values") for segment in range(2) for part in range(PARTS)]
    names += [(f"cell.tile_0.dot.sum_{lane}_{group}_1_{j}_TRELLIS_FF_Q_MULT18X18D_P", "MULT18X18D")
              for lane in range(2) for group in range(2) for j in range(32)]
    names += [(f"cell.writer.words_{i}", "DP16KD") for i in range(20)]
    names += [("cell.writer.square", "MULT18X18D"), ("cell.tile_0.softmax.table_0", "DP16KD"), ("x", "TRELLIS_FF")]
    cells: dict[str, Any] = {name: {"type": kind, "attributes": {}} for name, kind in names}
    return {"modules": {"top": {"cells": cells}}}


def test_an_elements_codes_and_multipliers_share_a_column() -> None:
    design = netlist()
    assert lfe5u_85f(design) == 4 * PARTS + 128 + 18
    cells = design["modules"]["top"]["cells"]
    place = {name: cell["attributes"]["BEL"] for name, cell in cells.items() if "BEL" in cell["attributes"]}
    assert len(set(place.values())) == len(place)

    def column(name: str) -> int:
        return int(place[name].split("/")[0][1:])

    for element in range(0, 64, 9):
        key, value = (column(f"cell.tile_0.{bank}.memory.memory_0.0.{element * 4 // 9}") for bank in ("keys", "values"))
        product = column(f"cell.tile_0.dot.sum_1_{element // 32}_1_{element % 32}_TRELLIS_FF_Q_MULT18X18D_P")
        assert max(key, value, product) - min(key, value, product) < 20
    assert place["cell.writer.words_0"] == "X4/Y22/EBR0" and place["cell.writer.words_17"] == ram(22, 17)


def test_what_else_there_is_stays_free() -> None:
    design = netlist()
    lfe5u_85f(design)
    cells = design["modules"]["top"]["cells"]
    for name in ("cell.writer.words_19", "cell.writer.square", "cell.tile_0.softmax.table_0", "x"):
        assert "BEL" not in cells[name]["attributes"]


def test_names_of_the_chips_places() -> None:
    assert [ram(46, column) for column in (4, 27, 28, 51)] == [
        "X13/Y46/EBR0", "X64/Y46/EBR3", "X69/Y46/EBR0", "X120/Y46/EBR3"]
    assert [multiplier(10, column) for column in (2, 3, 4, 28)] == [
        "X8/Y10/MULT18_4", "X9/Y10/MULT18_5", "X13/Y10/MULT18_0", "X69/Y10/MULT18_0"]
