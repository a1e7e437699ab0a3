"""Splits registers that drive too much: a step on ECP5 netlists between Yosys and nextpnr.

An enable or a select of the array reaches thousands of cells across the chip, and a single register's net is then the
slowest of all. Such a register is copied, each copy with a part of the cells. Cells of one signal have neighbouring
names, so cells in the order of their names make parts that lie close to each other.
"""

from __future__ import annotations

from statecell_boards.netlist import RAM, REGISTER, Bit, Netlist, inputs, natural, outside

CONTROL = ("CE", "LSR")
RAM_LOADS = 8
"""Loads that a block RAM counts for."""
LOADS = "loads_of_a_copy"
"""Attribute of registers: how many loads a copy may have, in place of the limits."""


def split_fanout(netlist: Netlist, limit: int, *, behind_register: int | None = None) -> int:
    """Copies registers of more than ``limit`` loads, in every module; returns the number of copies added.

    ``behind_register`` is the limit for a register whose input is another register's output, ``limit`` unless given;
    the attribute LOADS goes before both. A load is a cell, whatever the number of its pins; a block RAM counts for
    RAM_LOADS, because there are few in a wide area.

    A register and its copies have the same inputs, so they always hold the same. ``netlist`` is what Yosys's
    `write_json` gives after `synth_ecp5`; it is changed in place.
    """
    near = limit if behind_register is None else behind_register
    total = 0
    # copies are loads themselves
    while added := sum(_split_module(module, limit, near) for module in netlist["modules"].values()):
        total += added
    return total


def _split_module(module: Netlist, most: int, near: int) -> int:
    cells: Netlist = module["cells"]
    loads: dict[Bit, dict[str, list[tuple[str, int]]]] = {}
    for bit, name, port, place in inputs(module):
        loads.setdefault(bit, {}).setdefault(name, []).append((port, place))
    ports = outside(module)
    nets = {bit for cell in cells.values() for bits in cell["connections"].values() for bit in bits} | ports
    highest = max((bit for bit in nets if isinstance(bit, int)), default=0)
    own = {bit: int(name["attributes"][LOADS], 2) for name in module["netnames"].values() if LOADS in name["attributes"]
           for bit in name["bits"]}
    registers = {cell["connections"]["Q"][0] for cell in cells.values() if cell["type"] == REGISTER}
    added = 0
    for name, cell in list(cells.items()):
        if cell["type"] != REGISTER:
            continue
        bit = cell["connections"]["Q"][0]
        here = loads.get(bit, {})
        total = sum(_weight(cells[load]) for load in here)
        limit = own.get(bit, near if cell["connections"]["DI"][0] in registers else most)
        if bit in ports or total <= limit:
            continue
        size = total / -(-total // limit)  # of each part
        so_far = 0
        copies: list[int] = []
        for load in sorted(here, key=lambda load: (any(port in CONTROL for port, _ in here[load]), natural(load))):
            part = int(so_far / size)
            so_far += _weight(cells[load])
            if part == 0:
                continue
            while part > len(copies):
                highest += 1
                copies.append(highest)
                cells[f"{name}$copy{highest}"] = {  # a name of its own, for a register may be split again
                    **cell,
                    "connections": {port: list(bits) for port, bits in cell["connections"].items()} | {"Q": [highest]},
                }
            for port, place in here[load]:
                cells[load]["connections"][port][place] = copies[part - 1]
        added += len(copies)
    return added


def _weight(cell: Netlist) -> int:
    return RAM_LOADS if cell["type"] == RAM else 1
