"""Folds gates into carry cells: a step on ECP5 netlists between Yosys and nextpnr.

Yosys gives a two-operand adder the two inputs of each carry cell's look-up table that the sum needs and leaves the
other two unused, so that `a + (gate ? b : 0)` costs a look-up table a bit beside the carry cell. A CCU2C bit computes

    propagate = INIT(A, B, C, D), sum = propagate ^ carry in, carry out = propagate ? carry in : INIT[3:0](A, B)

where INIT[3:0] is the table at C = D = 0. With operand A plain, a function f of one to three signals takes the other
operand's place: propagate = A ^ f and, where propagate is 0, both operands equal A, so the lower table has to be A.
With up to two signals D is tied to 1, which keeps the lower table free; three signals need f to be 0 at C = D = 0.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

Bit = int | str
Netlist = dict[str, Any]
LUT_INPUTS = ("A", "B", "C", "D")


def fold_gates(netlist: Netlist) -> int:
    """Folds look-up tables that drive nothing but one carry cell into it, in every module; returns how many.

    ``netlist`` is what Yosys's `write_json` gives after `synth_ecp5`; it is changed in place.
    """
    return sum(_fold_module(module) for module in netlist["modules"].values())


def _fold_module(module: Netlist) -> int:
    cells: Netlist = module["cells"]
    uses: dict[Bit, int] = {}
    drivers: dict[Bit, str] = {}
    for name, cell in cells.items():
        for port, bits in cell["connections"].items():
            inward = cell.get("port_directions", {}).get(port) != "output"
            for bit in bits:
                if inward:
                    uses[bit] = uses.get(bit, 0) + 1
        if cell["type"] == "LUT4":
            drivers[cell["connections"]["Z"][0]] = name
    for port in module["ports"].values():
        for bit in port["bits"]:
            uses[bit] = uses.get(bit, 0) + 1
    folded = 0
    for cell in list(cells.values()):
        if cell["type"] == "CCU2C":
            for half in "01":
                for operand in "AB":
                    bit = cell["connections"][f"{operand}{half}"][0]
                    gate = drivers.get(bit)
                    if gate is not None and uses[bit] == 1 and _fold(cell, half, operand, cells[gate]):
                        del cells[gate], drivers[bit]
                        folded += 1
                        break
    return folded


def _fold(carry: Netlist, half: str, operand: str, gate: Netlist) -> bool:
    """Whether ``gate`` went into the place of ``operand`` of one bit of ``carry``."""
    pins = carry["connections"]
    operands = _operands(carry, half)
    if operands is None:
        return False
    inverted = operands[operand]
    plain = "B" if operand == "A" else "A"
    inputs, table = _reduced(gate)
    if not 1 <= len(inputs) <= 3:
        return False
    plain_inverted = operands[plain]
    for order in permutations(range(len(inputs))):
        new = _table(table, order, inverted, plain_inverted)
        if new is None:
            continue
        places: list[Bit] = [pins[f"{plain}{half}"][0], *(inputs[i] for i in order)]
        places += ["0"] * (3 - len(places))
        if len(inputs) < 3:
            places = [*places[:3], "1"]
        carry["parameters"][f"INIT{half}"] = f"{new:016b}"
        for pin, bit in zip(LUT_INPUTS, places, strict=True):
            pins[f"{pin}{half}"] = [bit]
        return True
    return False


def _table(table: int, order: tuple[int, ...], inverted: bool, plain_inverted: bool) -> int | None:
    """INIT of a bit whose A is plain and whose further inputs are the gate's in this order; None if it cannot be."""
    new = 0
    for index in range(16):
        a, rest = index & 1, index >> 1
        value = sum((rest >> place & 1) << i for place, i in enumerate(order))
        other = (table >> value & 1) ^ inverted
        own = a ^ plain_inverted
        generates = rest >> 1 == 0  # C = D = 0: the table that makes the carry
        if generates and len(order) == 3 and other:
            return None
        new |= (own if generates and len(order) < 3 else own ^ other) << index
    return new


def _operands(carry: Netlist, half: str) -> dict[str, bool] | None:
    """Whether A and B enter the sum inverted; None if the bit is not a sum of A and B as Yosys makes it."""
    init = int(carry["parameters"][f"INIT{half}"], 2)
    pins = carry["connections"]
    c, d = (pins[f"{pin}{half}"][0] for pin in "CD")
    if c not in ("0", "1") or d not in ("0", "1"):
        return None
    upper = init >> (4 * (int(c) + 2 * int(d))) & 15
    if init & 15 != 0b1010:  # carry out is A
        return None
    if upper == 0b0110:
        return {"A": False, "B": False}
    if upper == 0b1001:
        return {"A": False, "B": True}
    return None


def _reduced(gate: Netlist) -> tuple[list[Bit], int]:
    """The signals that a look-up table really depends on, and its table over them, the first lowest."""
    init = int(gate["parameters"]["INIT"], 2)
    pins = [gate["connections"].get(pin, ["0"])[0] for pin in LUT_INPUTS]
    signals = list(dict.fromkeys(bit for bit in pins if bit not in ("0", "1", "x")))

    def value(assignment: int) -> int:
        index = 0
        for place, bit in enumerate(pins):
            level = assignment >> signals.index(bit) & 1 if bit in signals else int(bit == "1")
            index |= level << place
        return init >> index & 1

    table = sum(value(assignment) << assignment for assignment in range(1 << len(signals)))
    return signals, table
