"""`statecell postsynthesis`: the device as synthesis made it, under the traffic of the device bench."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from statecell.cli.output import JsonOption, print_facts, print_json
from statecell.spec.geometry import CONFIGS, config
from statecell_boards.registry import board
from statecell_hw.device import device_of
from statecell_hw.emit import build_hash
from statecell_sim.errors import SimulatorError
from statecell_sim.postsynthesis import (
    FAMILIES,
    build,
    cells,
    check,
    family_of,
    mutate,
    netlist_of,
    netlist_verilog,
)

app = typer.Typer(help="Netlists checked on the synthesiser's cell models.")


@app.command(epilog="Example: statecell postsynthesis --family ice40 --config tiny")
def postsynthesis(
    name: Annotated[str, typer.Option("--family", "-f", help=f"Family of FPGAs: {', '.join(FAMILIES)}.")] = "ecp5",
    config_name: Annotated[str, typer.Option("--config", "-c", help=f"Configuration: {', '.join(CONFIGS)}.")] = "tiny",
    board_name: Annotated[
        str | None, typer.Option("--board", "-b", help="In place of both: the netlist of a board's bitstream.")
    ] = None,
    commands: Annotated[int, typer.Option("--commands", "-n", min=1, help="Random commands for each pauses.")] = 80,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the commands.")] = 1,
    mutant: Annotated[
        int | None, typer.Option("--mutant", help="Turn over one bit of a look-up table first, chosen by this number.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Synthesise a device, simulate the netlist on the cell models of Yosys, and compare every response with the model.

    Takes minutes and 4 GB for the configuration tiny. --board is for boards whose cells all have a model, as the
    iCEBreaker's have; the netlist then has its memory blocks and multipliers. Exit code 2 at the first response
    that differs.
    """
    chosen = board(board_name) if board_name else None
    name, config_name = (chosen.flow, chosen.configuration) if chosen else (name, config_name)
    family, geometry = family_of(name, chosen), config(config_name)
    start = time.monotonic()
    netlist = netlist_of(device_of(geometry, build_hash=build_hash(geometry), multiplier="gated"), family, chosen)
    changed = None if mutant is None else mutate(netlist, family, mutant)
    counted = cells(netlist)
    library = build(netlist_verilog(netlist, family), geometry)
    try:
        compared = check(library, geometry, commands=commands, seed=seed)
    except SimulatorError as error:
        raise SimulatorError(f"{error} (mutant: {changed})" if changed else str(error)) from error
    made: dict[str, Any] = {
        "family": name, "board": board_name, "config": config_name, "cells": counted, "mutant": changed,
        "responses": compared, "different": 0, "seconds": round(time.monotonic() - start, 1),
    }
    if as_json:
        print_json(made)
        return
    print_facts(f"netlist of {config_name} for {name}, on Yosys's cell models", [
        *((kind, count) for kind, count in counted.items()), ("responses", compared), ("different", 0),
    ])
