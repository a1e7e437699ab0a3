from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from statecell_boards.multipliers import absorb_registers

CLOCK = 2
BITS = 4  # of each operand; the others repeat its sign


def register(di: int, q: int, **more: list[int | str]) -> dict[str, Any]:
    pins: dict[str, list[int | str]] = {"CLK": [CLOCK], "DI": [di], "LSR": ["0"], "Q": [q], **more}
    return {
        "type": "TRELLIS_FF", "parameters": {"REGSET": "RESET", "CLKMUX": "CLK"},
        "port_directions": {pin: "output" if pin == "Q" else "input" for pin in pins}, "connections": pins,
    }


def netlist() -> dict[str, Any]:
    """Two registers in front of each operand bit (from bit 10 and 20 on), one behind each product bit (100 to 140)."""
    cells: dict[str, Any] = {}
    pins: dict[str, list[int | str]] = {"SIGNEDA": ["1"], "SIGNEDB": ["1"]}
    for base, operand in ((10, "A"), (20, "B")):
        for i in range(BITS):
            cells[f"{operand}{i}_first"] = register(base + 100 * 3 + i, base + 100 * 2 + i)
            cells[f"{operand}{i}"] = register(base + 100 * 2 + i, base + i)
        pins |= {f"{operand}{i}": [base + min(i, BITS - 1)] for i in range(18)}
    pins |= {f"P{i}": [100 + i] for i in range(36)}
    for i in range(2 * BITS):
        cells[f"P{i}"] = register(100 + i, 140 + i)
    cells["multiplier"] = {
        "type": "MULT18X18D", "parameters": {}, "connections": pins,
        "port_directions": {pin: "output" if pin[0] == "P" else "input" for pin in pins},
    }
    return {"modules": {"top": {"cells": cells, "ports": {}}}}


def play(design: dict[str, Any], inputs: list[dict[int, int]]) -> list[list[int]]:
    """Bits 140 and up in each cycle, from the definition of the cells; `inputs` are bits 310 to 323 by cycle."""
    cells = design["modules"]["top"]["cells"].values()
    state: dict[Any, int] = {}
    shown = []
    for given in inputs:
        values: dict[Any, int] = {"0": 0, "1": 1, **state, **given}
        multiplier = next(c for c in cells if c["type"] == "MULT18X18D")
        pins, parameters = multiplier["connections"], multiplier["parameters"]

        def operand(name: str, pins: Any = pins, values: dict[Any, int] = values) -> int:
            value = sum(values.get(pins[f"{name}{i}"][0], 0) << i for i in range(18))
            return value - (1 << 18) if value >> 17 else value

        now = {name: operand(name) for name in "AB"}
        factors = [state.get(name, 0) if f"REG_INPUT{name}_CLK" in parameters else now[name] for name in "AB"]
        product = factors[0] * factors[1] & (1 << 36) - 1
        following: dict[Any, int] = dict(now)
        for i in range(36):
            target = following if "REG_OUTPUT_CLK" in parameters else values
            target[pins[f"P{i}"][0]] = product >> i & 1
        for cell in cells:
            if cell["type"] == "TRELLIS_FF":
                following[cell["connections"]["Q"][0]] = values.get(cell["connections"]["DI"][0], 0)
        shown.append([values.get(140 + i, 0) for i in range(2 * BITS)])
        state = following
    return shown


def test_a_multiplier_with_its_registers_gives_the_same_products_in_the_same_cycles() -> None:
    rng = random.Random(3)
    inputs = [{300 + base + i: rng.getrandbits(1) for base in (10, 20) for i in range(BITS)} for _ in range(200)]
    before = netlist()
    after = deepcopy(before)
    assert absorb_registers(after) == 1
    cells = after["modules"]["top"]["cells"]
    assert sum(c["type"] == "TRELLIS_FF" for c in cells.values()) == 2 * BITS  # those in front of the operands'
    assert cells["multiplier"]["connections"]["CLK0"] == [CLOCK]
    assert play(before, inputs) == play(after, inputs)
    del cells["multiplier"]["parameters"]["REG_INPUTB_CLK"]
    assert play(before, inputs) != play(after, inputs)


def test_a_register_with_other_loads_stays_for_them() -> None:
    design = netlist()
    cells = design["modules"]["top"]["cells"]
    cells["other"] = register(20, 500)
    assert absorb_registers(design) == 1
    assert cells["B0"]["connections"]["Q"] == [20] and cells["multiplier"]["connections"]["B0"] == [220]


@pytest.mark.parametrize("change", ["enable", "logic", "reset", "shared"])
def test_what_is_not_the_same_stays(change: str) -> None:
    design = netlist()
    cells = design["modules"]["top"]["cells"]
    match change:
        case "enable":
            cells["A0"] = register(210, 10, CE=[7])
        case "logic":
            cells["A0_first"]["type"] = "LUT4"
        case "reset":
            cells["P3"] = register(103, 143, LSR=[7])
        case "shared":
            cells["other"] = register(103, 500)
    before = deepcopy(design)
    assert absorb_registers(design) == 0 and design == before
