"""Floorplan of the array on an LFE5U-85F: a step on ECP5 netlists between Yosys and nextpnr.

Block RAMs and multipliers lie in few rows of the chip. nextpnr's electrostatic placer first lets them float, and when
it moves them into their rows at the end the wires of its solution nearly double. So they get their places beforehand,
in the order of the elements of a row from left to right: an element's key codes, its multipliers and its value codes
share a column, and the placer arranges the logic around them. The block RAMs of the control logic lie side by side.
"""

from __future__ import annotations

import re

from statecell_boards.netlist import MULTIPLIER, RAM, Netlist, natural

COLUMNS = 52
"""Block RAMs of a row, and multipliers of a row."""
CONTROL_ROW, KEY_ROW, VALUE_ROWS = 22, 46, (70, 82)
MULTIPLIER_ROWS = (34, 58, 10)
CONTROL = 18
"""Places in CONTROL_ROW of block RAMs that hold no codes; the key rows' second segments take the rest."""
NARROW = 11
"""Block RAMs of a segment of keys in columns where the control logic's take CONTROL_ROW: both segments in KEY_ROW."""
BANK = re.compile(r"\.(keys|values)\.memory\.memory_(\d+)\.\d+\.(\d+)$")
PRODUCT = re.compile(r"\.dot\.sum_(\d+)_(\d+)_\d+_(\d+)")


def ram(row: int, column: int) -> str:
    """Name in nextpnr of a block RAM of an LFE5U-85F: four in nine columns of the chip, two columns wider from the
    middle on.
    """
    return f"X{4 + 9 * (column // 4) + 2 * (column % 4) + 2 * (column >= 28)}/Y{row}/EBR{column % 4}"


def multiplier(row: int, column: int) -> str:
    """Name in nextpnr of a multiplier of an LFE5U-85F."""
    within = (0, 1, 4, 5)[column % 4]
    return f"X{4 + 9 * (column // 4) + within + 2 * (column >= 28)}/Y{row}/MULT18_{within}"


MULTIPLIERS = tuple(multiplier(row, column) for row in MULTIPLIER_ROWS for column in range(COLUMNS))
"""All multipliers of an LFE5U-85F."""


def lfe5u_85f(netlist: Netlist) -> int:
    """Gives block RAMs and the dot unit's multipliers their places in every module; returns how many. For two segments
    of rows and two queries in multipliers; what else there is stays free.

    ``netlist`` is what Yosys's `write_json` gives after `synth_ecp5`; it is changed in place.
    """
    cells = {name: cell for module in netlist["modules"].values() for name, cell in module["cells"].items()}
    rams = {name: found for name, cell in cells.items() if cell["type"] == RAM and (found := BANK.search(name))}
    products = {name: tuple(map(int, found.groups())) for name, cell in cells.items()
                if cell["type"] == MULTIPLIER and (found := PRODUCT.search(name))}
    others = sorted((name for name, cell in cells.items()
                     if cell["type"] == RAM and name not in rams and ".softmax." not in name),
                    key=lambda name: (".rowstream." in name, natural(name)))  # the page table nearest to the rows
    places = {name: ram(CONTROL_ROW, column) for column, name in enumerate(others[:CONTROL])}
    last = max((int(found[3]) for found in rams.values()), default=0)
    for name, found in rams.items():
        places[name] = ram(*_bank_place(found[1] == "keys", int(found[2]), int(found[3]), last))
    group = max((element for _, _, element in products.values()), default=0) + 1
    order = sorted(products, key=lambda name: (products[name][1] * group + products[name][2], products[name][0]))
    for number, name in enumerate(order):
        site = round(number * (COLUMNS * len(MULTIPLIER_ROWS) - 1) / max(1, len(order) - 1))
        places[name] = multiplier(MULTIPLIER_ROWS[site % len(MULTIPLIER_ROWS)], site // len(MULTIPLIER_ROWS))
    assert len(set(places.values())) == len(places)
    for name, place in places.items():
        cells[name]["attributes"]["BEL"] = place
    return len(places)


def _bank_place(keys: bool, segment: int, part: int, last: int) -> tuple[int, int]:
    """Row and column of the block RAM of a segment that holds its rows' bits 9 * ``part`` to 9 * ``part`` + 8."""
    if not keys:
        return VALUE_ROWS[segment], round(part * (COLUMNS - 1) / last)
    if part < NARROW:
        return KEY_ROW, 2 * part + segment
    if segment == 0:
        return KEY_ROW, 2 * NARROW + (part - NARROW) * (COLUMNS - 2 * NARROW) // (last + 1 - NARROW)
    return CONTROL_ROW, CONTROL + round((part - NARROW) * (COLUMNS - 1 - CONTROL) / (last - NARROW))
