"""The command `statecell asic`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from statecell.cli.output import JsonOption, print_facts, print_json, print_rows
from statecell.spec.geometry import CONFIGS, config
from statecell_boards.asic.library import TITLE, Library, fetch_library
from statecell_boards.asic.macro import BIT_UM2, Macro, MacroModel
from statecell_boards.asic.synthesis import TOP, Area, synthesise
from statecell_boards.asic.timing import Timing, analyse, find_sta
from statecell_boards.errors import BoardError
from statecell_hw.array.multiply import Multiplier
from statecell_hw.tile import Tile

DEFAULT_CONFIG = "smollm2"
PERIOD_NS = 8.0

app = typer.Typer(help="Area and timing of the tile in standard cells.")


@app.command(epilog="Example: statecell asic --config smollm2 --json")
def asic(
    name: Annotated[str, typer.Option("--config", "-c", help=f"Configuration: {', '.join(CONFIGS)}.")] = DEFAULT_CONFIG,
    multiplier: Annotated[
        Multiplier, typer.Option("--multiplier", help="native: Yosys's own, smaller; gated: the form for FPGAs.")
    ] = "native",
    period: Annotated[float, typer.Option("--period", help="Clock period to map for, ns.")] = PERIOD_NS,
    bit_area: Annotated[
        float, typer.Option("--bit-area", help="Area of a memory macro for each of its bits, um2.")
    ] = BIT_UM2,
    folder: Annotated[Path, typer.Option("--output", "-o", help="Folder of netlist and reports.")] = Path("build/asic"),
    area_only: Annotated[bool, typer.Option("--area-only", help="Leave the timing, and OpenSTA, out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Estimate the tile's area and clock in a real cell library: Yosys maps it, OpenSTA times it.

    Wires are not in it: nothing is placed. Memories are macros whose size is assumed. Takes some minutes.
    """
    for value, option in ((period, "--period"), (bit_area, "--bit-area")):
        if not 0 < value < 1e6:
            raise BoardError(f"{option} is {value:g}: give a number above 0.")
    geometry = config(name)
    library = fetch_library()
    sta = None if area_only else find_sta()
    model = MacroModel(bit_um2=bit_area)
    found = synthesise(Tile(geometry, multiplier=multiplier), library, model, folder, period_ns=period)
    timing = analyse(sta, folder, period_ns=period) if sta is not None else None
    made = report(name, multiplier, library, found, timing)
    if as_json:
        print_json(made)
    else:
        _show(made)


def report(name: str, multiplier: str, library: Library, found: Area, timing: Timing | None) -> dict[str, Any]:
    """Area and timing as plain values; areas in um2, times in ns, shares of the logic."""
    return {
        "library": library.name, "estimate": True, "config": name, "multiplier": multiplier,
        "blocks": [
            {"block": block.name, "cells": block.cells, "um2": block.um2, "share": block.um2 / found.logic_um2}
            for block in found.blocks
        ],
        "cells": found.cells, "logic_um2": found.logic_um2,
        "memories": [_memory(macro, found.bit_um2) for macro in found.memories],
        "bit_um2": found.bit_um2, "memory_um2": found.memory_um2,
        "timing": None if timing is None else {**asdict(timing), "fmax_mhz": round(timing.fmax_mhz, 1)},
    }


def _memory(macro: Macro, bit_um2: float) -> dict[str, Any]:
    return {
        "memory": macro.block, "rows": macro.rows, "width": macro.width, "bits": macro.bits,
        "um2": round(macro.bits * bit_um2, 1),
    }


def _show(made: dict[str, Any]) -> None:
    title = f"{TITLE} ({made['library']}), estimate: {made['config']} tile, {made['multiplier']} multipliers, no wires"
    total = {"block": "all", "cells": made["cells"], "um2": made["logic_um2"], "share": 1.0}
    print_rows(title, [
        {**row, "block": _short(row["block"]), "share": f"{100 * row['share']:.1f} %"}
        for row in (*made["blocks"], total)
    ])
    print_rows(
        f"memories as macros, estimate: {made['bit_um2']} um2 a bit assumed",
        [{**row, "memory": _short(row["memory"])} for row in made["memories"]],
    )
    facts: list[tuple[str, Any]] = [
        ("logic, mm2", made["logic_um2"] / 1e6), ("memories, mm2", made["memory_um2"] / 1e6)
    ]
    if made["timing"]:
        timing = made["timing"]
        facts += [
            ("clock, MHz", timing["fmax_mhz"]), ("longest path, ns", timing["delay_ns"]),
            ("cells in it", timing["cells"]), ("from", timing["start"]), ("to", timing["end"]),
        ]
    print_facts(f"{made['library']}, estimate", facts)


def _short(path: str) -> str:
    """A block's name without the tile's; the tile's own cells are the registers between its blocks."""
    return path.removeprefix(f"{TOP}.") if path != TOP else f"{TOP}, between blocks"
