"""Leaves out enables that only save a simulator work: a step on ECP5 netlists between Yosys and nextpnr.

The pipelines of the array take a value only where there is one, which costs a simulator nothing else and an FPGA its
scarce enables: one net across the chip for each stage, and registers that can share a slice with few others.
"""

from __future__ import annotations

from statecell_boards.netlist import REGISTER, Netlist
from statecell_hw.array.arithmetic import UNREAD


def free_enables(netlist: Netlist) -> int:
    """Registers of signals with the attribute UNREAD take their input in every cycle, in every module; returns how
    many were changed.

    ``netlist`` is what Yosys's `write_json` gives after `synth_ecp5`; it is changed in place.
    """
    changed = 0
    for module in netlist["modules"].values():
        unread = {bit for name in module["netnames"].values() if UNREAD in name["attributes"] for bit in name["bits"]}
        for cell in module["cells"].values():
            if cell["type"] == REGISTER and cell["connections"]["Q"][0] in unread and "CE" in cell["connections"]:
                del cell["connections"]["CE"], cell["port_directions"]["CE"]
                cell["parameters"]["CEMUX"] = "1 "  # a space, as Yosys writes it: a string, no number
                changed += 1
    return changed
