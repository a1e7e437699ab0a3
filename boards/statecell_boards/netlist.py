"""Netlists of ECP5 cells as Yosys's `write_json` gives them: what the steps between Yosys and nextpnr share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Bit = int | str
"""A net, or the level "0", "1" or "x"."""
Netlist = dict[str, Any]
REGISTER, RAM, MULTIPLIER, TABLE = "TRELLIS_FF", "DP16KD", "MULT18X18D", "LUT4"


def drivers(module: Netlist) -> dict[Bit, str]:
    """The cell that drives each net which a cell does."""
    return {bit: name for name, cell in module["cells"].items() for port, bits in cell["connections"].items()
            if cell["port_directions"][port] == "output" for bit in bits}


def inputs(module: Netlist) -> Iterator[tuple[Bit, str, str, int]]:
    """Input pins of all cells: net, cell, port, and place in the port."""
    for name, cell in module["cells"].items():
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] != "output":
                for place, bit in enumerate(bits):
                    yield bit, name, port, place


def outside(module: Netlist) -> set[Bit]:
    """Nets of the module's ports."""
    return {bit for port in module["ports"].values() for bit in port["bits"]}


def undriven(netlist: Netlist) -> list[str]:
    """Input pins, as "cell.port", of nets that nothing drives."""
    lost = []
    for module in netlist["modules"].values():
        driven = outside(module) | set(drivers(module))
        lost += [f"{name}.{port}" for bit, name, port, _ in inputs(module) if type(bit) is int and bit not in driven]
    return lost


def natural(name: str) -> list[tuple[int, str]]:
    """Key that sorts names with numbers in them by those numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
