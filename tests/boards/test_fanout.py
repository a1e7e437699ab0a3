from __future__ import annotations

from typing import Any

from statecell_boards.fanout import LOADS, split_fanout


def netlist(loads: int) -> dict[str, Any]:
    """A register (bit 5) with loads in the order of their numbers, every third one an enable."""
    cells: dict[str, Any] = {
        "source": {
            "type": "TRELLIS_FF", "parameters": {"REGSET": "RESET"},
            "port_directions": {"CLK": "input", "DI": "input", "CE": "input", "Q": "output"},
            "connections": {"CLK": [2], "DI": [3], "CE": [4], "Q": [5]},
        }
    }
    for i in range(loads):
        enable = i % 3 == 0
        cells[f"load_{i}"] = {
            "type": "TRELLIS_FF", "parameters": {},
            "port_directions": {"CLK": "input", "DI": "input", "CE": "input", "Q": "output"},
            "connections": {"CLK": [2], "DI": [3 if enable else 5], "CE": [5 if enable else 4], "Q": [10 + i]},
        }
    return {"modules": {"top": {"cells": cells, "netnames": {}, "ports": {"clk": {"direction": "input", "bits": [2]}}}}}


def drivers(design: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {cell["connections"]["Q"][0]: cell for cell in design["modules"]["top"]["cells"].values()}


def test_every_load_keeps_a_driver_of_the_same_input_and_no_driver_has_too_many() -> None:
    design = netlist(20)
    assert split_fanout(design, 6) == 3
    by_bit = drivers(design)
    count: dict[int, int] = {}
    for i in range(20):
        pins = design["modules"]["top"]["cells"][f"load_{i}"]["connections"]
        bit = pins["CE" if i % 3 == 0 else "DI"][0]
        count[bit] = count.get(bit, 0) + 1
        driver = by_bit[bit]
        assert driver["parameters"] == {"REGSET": "RESET"}
        assert {pin: driver["connections"][pin] for pin in ("CLK", "DI", "CE")} == {"CLK": [2], "DI": [3], "CE": [4]}
    assert sum(count.values()) == 20 and max(count.values()) <= 6 and len(count) == 4


def test_neighbours_share_a_copy() -> None:
    design = netlist(20)
    split_fanout(design, 7)
    cells = design["modules"]["top"]["cells"]
    of_data = [cells[f"load_{i}"]["connections"]["DI"][0] for i in range(20) if i % 3]
    assert of_data == sorted(of_data, key=of_data.index), "each copy's loads are consecutive"


def test_few_loads_and_ports_are_left_alone() -> None:
    assert split_fanout(netlist(6), 6) == 0
    design = netlist(20)
    design["modules"]["top"]["ports"]["o"] = {"direction": "output", "bits": [5]}
    assert split_fanout(design, 6) == 0


def test_a_register_behind_a_register_is_copied_at_its_own_limit() -> None:
    design = netlist(20)
    design["modules"]["top"]["cells"]["before"] = {
        "type": "TRELLIS_FF", "parameters": {}, "port_directions": {"CLK": "input", "DI": "input", "Q": "output"},
        "connections": {"CLK": [2], "DI": [9], "Q": [3]},
    }
    assert split_fanout(design, 100, behind_register=6) == 3
    assert split_fanout(netlist(20), 100, behind_register=6) == 0


def test_a_register_that_is_split_again_for_copies_of_another_keeps_all_its_copies() -> None:
    design = netlist(20)
    cells = design["modules"]["top"]["cells"]
    behind = {**cells["source"], "connections": {**cells["source"]["connections"], "DI": [5], "Q": [200]}}
    cells["behind"] = behind
    for i in range(60):  # loads of the register behind: its copies are more loads of the first
        cells[f"far_{i}"] = {**behind, "connections": {**behind["connections"], "DI": [200], "Q": [300 + i]}}
    assert split_fanout(design, 8, behind_register=4) > 15
    driven = {cell["connections"]["Q"][0] for cell in cells.values()}
    assert len(driven) == len(cells)
    loads: dict[int, int] = {}
    for cell in cells.values():
        for pin in ("DI", "CE"):
            bit = cell["connections"][pin][0]
            assert bit in driven or bit in (3, 4)
            loads[bit] = loads.get(bit, 0) + 1
    assert max(count for bit, count in loads.items() if bit not in (3, 4)) <= 8


def test_the_attribute_of_a_register_goes_before_the_limits() -> None:
    design = netlist(20)
    design["modules"]["top"]["netnames"]["slow"] = {"bits": [5], "attributes": {LOADS: f"{4:032b}"}}
    assert split_fanout(design, 100) == 4
