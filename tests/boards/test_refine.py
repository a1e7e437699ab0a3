from __future__ import annotations

import copy
import random
import re
from typing import Any

import pytest

import statecell_boards.sites as sites
from statecell_boards.refine import refine
from statecell_boards.timing import GRADE, graph
from tests.boards.placed import comb, module, register

MHZ = 1e6


def illegal(top: dict[str, Any]) -> list[str]:
    """What nextpnr would refuse in a placement: one control set a tile, one enable a slice, one user of a lane's M."""
    wrong, seen = [], set()
    controls: dict[Any, set[Any]] = {}
    enables: dict[Any, set[Any]] = {}
    for name, cell in top["cells"].items():
        place = cell["attributes"]["NEXTPNR_BEL"]
        if place in seen:
            wrong.append(f"two cells at {place}")
        seen.add(place)
        tile, slice_, kind = re.fullmatch(r"(X\d+/Y\d+)/SLICE([A-D])\.(K|FF)[01]", place).groups()  # type: ignore[union-attr]
        if kind == "FF":
            wires = cell["connections"]
            controls.setdefault(tile, set()).add(str(wires.get("LSR")))
            enables.setdefault((tile, slice_), set()).add(str(wires.get("CE")))
            if "DI" in wires:
                source = next(c for c in top["cells"].values() if c["connections"].get("F") == wires["DI"])
                if source["attributes"]["NEXTPNR_BEL"] != place.replace("FF", "K"):
                    wrong.append(f"{name} is not behind its table")
    wrong += [f"control sets of {tile}" for tile, found in controls.items() if len(found) > 1]
    wrong += [f"enables of {place}" for place, found in enables.items() if len(found) > 1]
    return wrong


def scattered(seed: int) -> dict[str, Any]:
    """Registers and tables in random places of a small chip, legal and slow: tables feed registers far away."""
    rng = random.Random(seed)
    cells: dict[str, dict[str, Any]] = {}
    tiles = [(x, y) for x in range(2, 80, 6) for y in range(2, 60, 8)]
    rng.shuffle(tiles)
    nets = list(range(100, 160))
    for number in range(60):
        tile = tiles[number % len(tiles)]
        lane = f"{'ABCD'[number // len(tiles) % 4]}"
        clear = 7 + sum(tile) % 3
        if number % 3 == 0:
            cells[f"t{number}"] = comb(tile, f"{lane}.K0", out=nets[number], ins=rng.sample(nets[:number] or [99], 1))
            cells[f"r{number}"] = register(tile, f"{lane}.FF0", out=200 + number, data=(nets[number], "DI"),
                                           clear=clear)
        elif number % 3 == 1:
            cells[f"r{number}"] = register(tile, f"{lane}.FF1", out=nets[number], data=(rng.choice(nets), "M"),
                                           enable=20 + number % 2, clear=clear)
        else:
            cells[f"t{number}"] = comb(tile, f"{lane}.K1", out=nets[number], ins=rng.sample(nets[:number], 2))
    return module(cells)


def test_a_table_at_the_wrong_end_of_the_chip_comes_back() -> None:
    cells = {
        "a": register((2, 2), "A.FF0", out=10, data=(12, "M")),
        "lost": comb((90, 80), "B.K1", out=11, ins=[10]),
        "b": register((4, 2), "A.FF0", out=12, data=(11, "M")),
    }
    netlist = {"modules": {"top": module(cells)}}
    result = refine(netlist, 100 * MHZ)
    assert result.before[1] == 1 and result.after[1] == 0 and result.moved >= 1
    assert result.after[0] < 3 and not illegal(netlist["modules"]["top"])


def test_times_are_those_of_the_speed_grade() -> None:
    top = {"modules": {"top": scattered(0)}}
    slow, fast = (refine(copy.deepcopy(top), 250 * MHZ, grade).before[0] for grade in (6, 8))
    assert fast == pytest.approx(GRADE[8] * slow)


def test_what_is_locked_stays() -> None:
    cells = {
        "a": register((2, 2), "A.FF0", out=10, data=(12, "M")),
        "lost": comb((90, 80), "B.K1", out=11, ins=[10]),
        "b": register((4, 2), "A.FF0", out=12, data=(11, "M")),
    }
    for cell in cells.values():
        cell["attributes"]["BEL_STRENGTH"] = "101"
    before = copy.deepcopy(cells)
    assert refine({"modules": {"top": module(cells)}}, 100 * MHZ).moved == 0
    assert cells == before


@pytest.mark.parametrize("seed", range(4))
def test_placements_stay_legal_and_get_faster(seed: int) -> None:
    top = scattered(seed)
    wires = {name: cell["connections"] for name, cell in copy.deepcopy(top)["cells"].items()}
    assert not illegal(top)
    result = refine({"modules": {"top": top}}, 250 * MHZ)
    assert not illegal(top)
    assert {name: cell["connections"] for name, cell in top["cells"].items()} == wires
    assert result.moved and result.after[0] < result.before[0] and result.after[1] <= result.before[1]
    assert result.after[0] == pytest.approx(graph(top).run(4.0).max())


def test_the_check_of_places_finds_a_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "control", lambda cell: ())
    tops = [scattered(seed) for seed in range(4)]
    for top in tops:
        refine({"modules": {"top": top}}, 250 * MHZ)
    assert any(illegal(top) for top in tops)


def test_a_multiplier_goes_to_a_free_site() -> None:
    product: dict[str, Any] = {"type": "MULT18X18D", "parameters": {},
               "attributes": {"NEXTPNR_BEL": "X90/Y34/MULT18_0", "BEL_STRENGTH": "001"},
               "port_directions": {"A0": "input", "P0": "output"}, "connections": {"A0": [10], "P0": [11]}}
    cells = {
        "a": register((2, 2), "A.FF0", out=10, data=(12, "M")), "product": product,
        "b": register((4, 2), "A.FF0", out=12, data=(11, "M")),
    }
    result = refine({"modules": {"top": module(cells)}}, 100 * MHZ, multipliers=["X4/Y10/MULT18_1", "X90/Y34/MULT18_0"])
    assert product["attributes"]["NEXTPNR_BEL"] == "X4/Y10/MULT18_1" and result.moved and result.after[1] == 0


def test_tables_of_a_tree_in_one_tile_stay_together() -> None:
    cells = {
        "a": register((2, 2), "A.FF0", out=10, data=(12, "M")),
        "leaf": comb((90, 80), "B.K0", out=11, ins=[10]),
        "root": comb((90, 80), "B.K1", out=13, ins=[]),
        "b": register((4, 2), "A.FF0", out=12, data=(14, "M")),
    }
    for name, port, net, way in (("leaf", "OFX", 15, "output"), ("root", "FXA", 15, "input"),
                                 ("root", "OFX", 14, "output")):
        cells[name]["connections"][port] = [net]
        cells[name]["port_directions"][port] = way
    for name in ("a", "b"):
        cells[name]["attributes"]["BEL_STRENGTH"] = "101"
    refine({"modules": {"top": module(cells)}}, 100 * MHZ)
    places = [cells[name]["attributes"]["NEXTPNR_BEL"] for name in ("leaf", "root")]
    assert places == ["X90/Y80/SLICEB.K0", "X90/Y80/SLICEB.K1"]
