"""Splits registers that drive too much: a step on ECP5 netlists between Yosys and nextpnr.

An enable or a select of the array reaches thousands of cells across the chip, and a single register's net is then the
slowest of all. Such a register is copied, each copy with a part of the cells. Cells of one signal have neighbouring
names, so cells in the order of their names make parts that lie close to each other.
"""

from __future__ import annotations

import re
from typing import Any

Bit = int | str
Netlist = dict[str, Any]
REGISTER = "TRELLIS_FF"
CONTROL = ("CE", "LSR")


def split_fanout(netlist: Netlist, limit: int, *, behind_register: int | None = None) -> int:
    """Copies registers of more than ``limit`` loads, in every module; returns the number of copies added.

    ``behind_register`` is the limit for a register whose input is another register's output, ``limit`` unless given.

    A register and its copies have the same inputs, so they always hold the same. ``netlist`` is what Yosys's
    `write_json` gives after `synth_ecp5`; it is changed in place.
    """
    near = limit if behind_register is None else behind_register
    return sum(_split_module(module, limit, near) for module in netlist["modules"].values())


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _split_module(module: Netlist, most: int, near: int) -> int:
    cells: Netlist = module["cells"]
    loads: dict[Bit, list[tuple[str, str, int]]] = {}
    highest = 0
    for name, cell in cells.items():
        for port, bits in cell["connections"].items():
            for place, bit in enumerate(bits):
                if isinstance(bit, int):
                    highest = max(highest, bit)
                if cell["port_directions"][port] != "output":
                    loads.setdefault(bit, []).append((name, port, place))
    for port in module["ports"].values():
        highest = max(highest, *(bit for bit in port["bits"] if isinstance(bit, int)), 0)
    outside = {bit for port in module["ports"].values() for bit in port["bits"]}
    registers = {cell["connections"]["Q"][0] for cell in cells.values() if cell["type"] == REGISTER}
    added = 0
    for name, cell in list(cells.items()):
        if cell["type"] != REGISTER:
            continue
        bit = cell["connections"]["Q"][0]
        here = loads.get(bit, [])
        limit = near if cell["connections"]["DI"][0] in registers else most
        if bit in outside or len(here) <= limit:
            continue
        here.sort(key=lambda load: (load[1] in CONTROL, _natural(load[0])))
        parts = -(-len(here) // limit)
        size = -(-len(here) // parts)
        for part in range(1, parts):
            highest += 1
            cells[f"{name}$copy{part}"] = {
                **cell,
                "connections": {port: list(bits) for port, bits in cell["connections"].items()} | {"Q": [highest]},
            }
            for load, port, place in here[part * size:(part + 1) * size]:
                cells[load]["connections"][port][place] = highest
            added += 1
    return added
