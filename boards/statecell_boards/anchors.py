"""Fixes block RAMs and multipliers of the control logic: a step on ECP5 netlists between Yosys and nextpnr.

They are slow, and their columns are shared with the array, which takes most of them: left to the placer, the few of the
control logic end up where the array leaves room, far from the logic around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statecell_boards.fanout import RAM, natural
from statecell_boards.multipliers import MULTIPLIER

Netlist = dict[str, Any]
ARRAY = (".keys.memory", ".values.memory", ".softmax.", ".dot.")
"""Parts of the names of the array's block RAMs and multipliers."""


def ram_row(y: int, count: int) -> tuple[str, ...]:
    """Names in nextpnr of the first ``count`` block RAMs of row ``y`` of an LFE5U-85F: four in nine columns."""
    return tuple(f"X{4 + 9 * (i // 4) + 2 * (i % 4) + 2 * (i >= 28)}/Y{y}/EBR{i % 4}" for i in range(count))


def multiplier_row(y: int, count: int) -> tuple[str, ...]:
    """Names in nextpnr of the first ``count`` multipliers, at most 28, of such a row."""
    place = ((0, 0), (1, 1), (4, 4), (5, 5))  # column and number
    return tuple(f"X{4 + 9 * (i // 4) + place[i % 4][0]}/Y{y}/MULT18_{place[i % 4][1]}" for i in range(count))


def fix_places(netlist: Netlist, rams: Sequence[str], multipliers: Sequence[str]) -> int:
    """Gives block RAMs and multipliers outside of the array these places, in the order of their names, as far as there
    are any; the rest stay free. Returns how many are fixed.

    ``netlist`` is what Yosys's `write_json` gives after `synth_ecp5`; it is changed in place.
    """
    cells = {name: cell for module in netlist["modules"].values() for name, cell in module["cells"].items()}
    fixed = 0
    for kind, places in ((RAM, rams), (MULTIPLIER, multipliers)):
        names = (n for n, cell in cells.items() if cell["type"] == kind and not any(part in n for part in ARRAY))
        for name, place in zip(sorted(names, key=natural), places, strict=False):
            cells[name]["attributes"]["BEL"] = place
            fixed += 1
    return fixed
