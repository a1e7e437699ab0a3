from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from statecell_boards.fold import fold_gates

# INIT of a sum as Yosys makes it: propagate A ^ B ^ C under D, A where C and D are 0
SUM_INIT = f"{0x96AA:016b}"


def netlist(gates: list[tuple[int, list[int | str]]], operands: list[tuple[int | str, int | str]], minus: bool,
            carry_in: int | str) -> dict[str, Any]:
    """Look-up tables whose outputs are the bits 100 and up, and a chain of carry cells with sums from bit 200 up."""
    cells: dict[str, Any] = {}
    for i, (init, pins) in enumerate(gates):
        cells[f"gate{i}"] = {
            "type": "LUT4", "parameters": {"INIT": f"{init:016b}"},
            "port_directions": dict.fromkeys("ABCD", "input") | {"Z": "output"},
            "connections": {pin: [bit] for pin, bit in zip("ABCD", pins, strict=True)} | {"Z": [100 + i]},
        }
    for i in range(0, len(operands), 2):
        chain: dict[str, list[int | str]] = {"CIN": [carry_in if i == 0 else 300 + i], "COUT": [302 + i]}
        for half in range(2):
            a, b = operands[i + half]
            chain |= {f"A{half}": [a], f"B{half}": [b], f"C{half}": [str(int(minus))], f"D{half}": ["1"],
                     f"S{half}": [200 + i + half]}
        cells[f"carry{i}"] = {
            "type": "CCU2C", "parameters": {"INIT0": SUM_INIT, "INIT1": SUM_INIT},
            "port_directions": {pin: "output" if pin in ("COUT", "S0", "S1") else "input" for pin in chain},
            "connections": chain,
        }
    return {"modules": {"top": {"cells": cells, "ports": {}}}}


def evaluate(design: dict[str, Any], inputs: dict[int | str, int]) -> list[int]:
    """Sums and the last carry, from the definition of the cells."""
    values: dict[int | str, int] = {"0": 0, "1": 1, "x": 0, **inputs}
    cells = design["modules"]["top"]["cells"]

    def table(init: str, bits: list[int | str]) -> int:
        return int(init, 2) >> sum(values[bit] << i for i, bit in enumerate(bits)) & 1

    for cell in cells.values():
        if cell["type"] == "LUT4":
            pins = cell["connections"]
            values[pins["Z"][0]] = table(cell["parameters"]["INIT"], [pins[pin][0] for pin in "ABCD"])
    result = []
    for cell in cells.values():
        if cell["type"] == "CCU2C":
            pins, carry = cell["connections"], values[cell["connections"]["CIN"][0]]
            for half in "01":
                init = cell["parameters"][f"INIT{half}"]
                propagate = table(init, [pins[f"{pin}{half}"][0] for pin in "ABCD"])
                generate = table(init, [pins[f"A{half}"][0], pins[f"B{half}"][0], "0", "0"])
                result.append(propagate ^ carry)
                carry = carry if propagate else generate
            values[pins["COUT"][0]] = carry
    return [*result, carry]


def same(a: dict[str, Any], b: dict[str, Any], rng: random.Random) -> bool:
    for _ in range(200):
        inputs: dict[int | str, int] = {bit: rng.getrandbits(1) for bit in range(1, 40)}
        if evaluate(a, inputs) != evaluate(b, inputs):
            return False
    return True


@pytest.mark.parametrize("minus", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_any_two_gates_before_a_sum_keep_the_sum(seed: int, minus: bool) -> None:
    rng = random.Random(seed)
    gates: list[tuple[int, list[int | str]]] = []
    for _ in range(8):
        used: list[int | str] = list(rng.sample(range(1, 6), rng.randint(1, 3)))
        gates.append((rng.getrandbits(16), used + ["0"] * (4 - len(used))))
    before = netlist(gates, [(100 + 2 * i, 101 + 2 * i) for i in range(4)], minus, str(int(minus)))
    after = deepcopy(before)
    assert fold_gates(after) > 0
    assert same(before, after, rng)


@pytest.mark.parametrize("minus", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_any_gate_before_a_sum_keeps_the_sum(seed: int, minus: bool) -> None:
    rng = random.Random(seed)
    gates: list[tuple[int, list[int | str]]] = []
    operands: list[tuple[int | str, int | str]] = []
    for i in range(6):
        used: list[int | str] = list(rng.sample(range(1, 40), rng.randint(1, 4)))
        gates.append((rng.getrandbits(16), used + ["0"] * (4 - len(used))))
        operands.append((rng.randint(1, 39), 100 + i) if rng.random() < 0.5 else (100 + i, rng.randint(1, 39)))
    before = netlist(gates, operands, minus, str(int(minus)))
    after = deepcopy(before)
    folded = fold_gates(after)
    assert folded == 6 - sum(cell["type"] == "LUT4" for cell in after["modules"]["top"]["cells"].values())
    assert same(before, after, rng)


def gated(minus: bool) -> dict[str, Any]:
    # B = signal 2 if signal 3
    return netlist([(0x8888, [2, 3, "0", "0"]), (0x8888, [4, 3, "0", "0"])], [(1, 100), (101, 5)], minus, 6)


@pytest.mark.parametrize("minus", [False, True])
def test_a_gate_is_folded_on_either_side(minus: bool) -> None:
    after = gated(minus)
    assert fold_gates(after) == 2
    assert set(after["modules"]["top"]["cells"]) == {"carry0"}


def test_a_product_by_two_bits_is_one_carry_cell_a_bit() -> None:
    # (3 ? 1 : 0) + (4 ? 2 : 0)
    after = netlist([(0x8888, [1, 3, "0", "0"]), (0x8888, [2, 4, "0", "0"])] * 2, [(100, 101), (102, 103)], False, 6)
    assert fold_gates(after) == 4


def test_a_choice_of_two_is_folded() -> None:
    # 3 ? 4 : 2
    after = netlist([(0xCACA, [2, 4, 3, "0"])] * 2, [(1, 100), (7, 101)], False, 6)
    assert fold_gates(after) == 2


def test_what_others_use_stays() -> None:
    shared = netlist([(0x8888, [2, 3, "0", "0"])], [(1, 100), (5, 100)], False, 6)
    assert fold_gates(shared) == 0
    port = netlist([(0x8888, [2, 3, "0", "0"])], [(1, 100), (5, 7)], False, 6)
    port["modules"]["top"]["ports"]["o"] = {"direction": "output", "bits": [100]}
    assert fold_gates(port) == 0


def test_a_wrong_table_is_noticed() -> None:
    before, after = gated(False), gated(False)
    fold_gates(after)
    parameters = after["modules"]["top"]["cells"]["carry0"]["parameters"]
    parameters["INIT0"] = f"{int(parameters['INIT0'], 2) ^ 1 << 9:016b}"
    assert not same(before, after, random.Random(1))
