"""Area and clock of the boards' designs against the committed baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from statecell_boards.board import Board
from statecell_boards.errors import BoardError
from statecell_hw.emit import build_hash

FOLDER = Path(__file__).parent / "baselines"
AREA = ("lut", "ff", "bram", "dsp")
AREA_RISE = 0.02
CLOCK_FALL = 0.03
KEPT = ("board", "config", "fmax_mhz", "clock_mhz", *AREA)
"""What a baseline records of a summary."""


def complaints(summary: dict[str, Any], baseline: dict[str, Any]) -> list[str]:
    """What has become worse than the baseline allows: area by more than 2 %, the clock by more than 3 %."""
    found = []
    for name in AREA:
        if summary[name] > baseline[name] * (1 + AREA_RISE):
            found.append(f"{name} {summary[name]:,} against {baseline[name]:,}")
    if summary["fmax_mhz"] < baseline["fmax_mhz"] * (1 - CLOCK_FALL):
        found.append(f"fmax {summary['fmax_mhz']} MHz against {baseline['fmax_mhz']} MHz")
    return found


def read_summary(board: Board, build: Path) -> dict[str, Any]:
    """The summary of the board's last build. Raises BoardError without one, or if the sources have changed since."""
    path = build / board.name / "summary.json"
    remedy = f"run `make bitstream BOARD={board.name}`"
    if not path.is_file():
        raise BoardError(f"There is no {path}: {remedy}.")
    summary: dict[str, Any] = json.loads(path.read_text())
    if summary["build"] != f"{build_hash(board.geometry):016x}":
        raise BoardError(f"{path} is of other sources than these: {remedy}.")
    return summary


def check(board: Board, build: Path) -> list[str]:
    """Complaints about the board's last build. Raises BoardError as :func:`read_summary`, and without a baseline."""
    path = FOLDER / f"{board.name}.json"
    summary = read_summary(board, build)
    if not path.is_file():
        raise BoardError(f"{board.name} has no baseline: record one with `statecell boards --record {board.name}`.")
    return complaints(summary, json.loads(path.read_text()))


def record(board: Board, build: Path) -> Path:
    """Makes the board's last build its baseline; returns the file. Raises BoardError as :func:`read_summary`."""
    summary = read_summary(board, build)
    path = FOLDER / f"{board.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({name: summary[name] for name in KEPT}, indent=2) + "\n")
    return path
