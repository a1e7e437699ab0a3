"""The commands `statecell boards`, `statecell bitstream` and `statecell program`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from statecell.cli.output import JsonOption, err, out, print_facts, print_json, print_rows
from statecell_boards import baseline, vendor
from statecell_boards import bitstream as builder
from statecell_boards import program as loader
from statecell_boards.board import Board
from statecell_boards.context import MODELS, tokens
from statecell_boards.errors import BoardError
from statecell_boards.registry import BOARDS, board

BUILD = Path("build")
BoardOption = Annotated[str, typer.Option("--board", "-b", help=f"Board: {', '.join(BOARDS)}.")]

boards_app = typer.Typer()
bitstream_app = typer.Typer()
program_app = typer.Typer()


@boards_app.command(epilog="Example: statecell boards")
def boards(
    check: Annotated[list[str] | None, typer.Option(help="Compare a board's last build with its baseline.")] = None,
    record: Annotated[list[str] | None, typer.Option(help="Make a board's last build its baseline.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the boards that bitstreams can be made for: what fits, and how much context of which model.

    --check fails if area has grown by more than 2 % or the clock fallen by more than 3 %.
    """
    if record:
        for name in record:
            out().print(f"{name}: baseline {baseline.record(board(name), BUILD)}")
        return
    if check:
        worse = {name: baseline.check(board(name), BUILD) for name in check}
        if as_json:
            print_json(worse)
        for name, found in worse.items():
            (err if found else out)().print(f"{name}: {'; '.join(found) or 'as its baseline or better'}")
        if any(worse.values()):
            raise typer.Exit(1)
        return
    rows = [_row(board(name)) for name in BOARDS]
    if as_json:
        print_json(rows)
        return
    print_rows("boards", [
        {**{k: v for k, v in row.items() if k not in ("tokens", "configuration", "interface")},
         **{f"{model} tokens": count or "-" for model, count in row["tokens"].items()}}
        for row in rows
    ])


@bitstream_app.command(epilog="Example: statecell bitstream --board ulx3s_85f")
def bitstream(
    name: BoardOption,
    folder: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; build/BOARD if not given.")] = None,
    emit_only: Annotated[
        bool, typer.Option("--emit-only", help="Boards of vendors: write the project that the vendor's tools finish.")
    ] = False,
    area: Annotated[bool, typer.Option("--area", help="With --emit-only: have Yosys estimate the area.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a board's bitstream: synthesis, place and route, packing. Fails if the design does not meet its clock."""
    chosen = board(name)
    folder = folder or BUILD / name
    if emit_only:
        _emit(chosen, folder, area, as_json)
        return
    made = builder.build(chosen, folder)
    if as_json:
        print_json(made)
        return
    print_facts(f"{chosen.title}, bitstream {folder / (name + builder.FLOWS[chosen.flow].suffix)}", _facts(made))


@program_app.command(epilog="Example: statecell program --board ulx3s_85f")
def program(
    name: BoardOption,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Bitstream; build/BOARD's if not given.")] = None,
) -> None:
    """Load a bitstream into a board that is connected by USB."""
    chosen = board(name)
    suffix = builder.FLOWS[chosen.flow].suffix if chosen.flow in builder.FLOWS else ".bit"
    loader.program(chosen, file or BUILD / name / f"{name}{suffix}")
    out().print(f"{chosen.title} is loaded; its serial port is {chosen.interface}.")


def _emit(chosen: Board, folder: Path, area: bool, as_json: bool) -> None:
    if chosen.flow not in vendor.TOOLS:
        raise BoardError(f"The {chosen.title} needs no vendor's tools: leave --emit-only out.")
    files = vendor.emit(chosen, folder)
    cells = vendor.area(chosen, folder) if area else {}
    if as_json:
        print_json({"board": chosen.name, "folder": str(folder), "files": files, "area": cells})
        return
    if cells:
        print_facts(f"{chosen.title}, cells by Yosys, an estimate", cells.items())
    out().print(
        f"{folder} holds the whole project; {vendor.TOOLS[chosen.flow]} must finish it: run build_{builder.TOP}.sh.",
        soft_wrap=True,
    )


def _row(chosen: Board) -> dict[str, Any]:
    g = chosen.geometry
    return {
        "board": chosen.name, "FPGA": chosen.part, "configuration": g.name, "clock MHz": g.clock_hz / 1e6,
        "head dim": g.head_dim, "queries": g.lanes, "rows": g.rows * g.tiles, "interface": chosen.interface,
        "tokens": {name: tokens(g, shape) for name, shape in MODELS.items()},
    }


def _facts(made: dict[str, Any]) -> list[tuple[str, Any]]:
    area = [(name.upper(), f"{made[name]:,} of {made['available'][name]:,}") for name in made["available"]]
    context = [(f"tokens of {name}", count or "does not fit") for name, count in made["tokens"].items()]
    return [
        ("configuration", made["config"]), ("FPGA", made["part"]),
        ("clock, MHz", made["clock_mhz"]), ("reached, MHz", made["fmax_mhz"]), *area,
        ("rows of each bank", made["key_rows"]), ("head dimension", made["head_dim"]),
        ("queries a pass", made["queries"]), *context,
    ]
