"""Loads a bitstream into a board with openFPGALoader."""

from __future__ import annotations

import subprocess
from pathlib import Path

from statecell_boards.board import Board
from statecell_boards.errors import BoardError
from statecell_boards.tools import tool

LOADER = "openfpgaloader-cli"
LIMIT_S = 300
LIBRARIES = "libusb-1.0-0 libftdi1-2 libhidapi-hidraw0"
"""Debian packages that the loader's program needs."""
ABSENT = ("unable to open", "not found", "no cable", "can't open", "no device", "cannot open")


def program(board: Board, bitstream: Path) -> None:
    """Loads ``bitstream`` into the board's FPGA, where it is lost with the power, or as the board's `load` says.

    Raises BoardError if there is no such file, the loader does not run, or no such board answers.
    """
    if not bitstream.is_file():
        raise BoardError(f"There is no bitstream {bitstream}: make it with `make bitstream BOARD={board.name}`, "
                         "or name another with --file.")
    command = [tool(LOADER), "--board", board.programmer, *board.load, str(bitstream)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BoardError(f"The {board.title} did not take the bitstream in {LIMIT_S} s: unplug it, plug it in again, "
                         "and try once more.") from None
    said = (done.stdout + done.stderr).strip()
    if done.returncode == 0:
        return
    if "shared librar" in said:
        raise BoardError(f"openFPGALoader lacks a library of the system: `apt install {LIBRARIES}`.")
    last = said.splitlines()[-1] if said else f"status {done.returncode}"
    if any(mark in said.lower() for mark in ABSENT):
        raise BoardError(f"No {board.title} answers on USB ({last}): connect it, and check that you may use the port.")
    raise BoardError(f"openFPGALoader could not load the {board.title}: {last}.")
