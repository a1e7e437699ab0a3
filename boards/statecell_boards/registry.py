"""The boards, by name; a board's module is read when it is asked for."""

from __future__ import annotations

from importlib import import_module

from statecell_boards.board import Board
from statecell_boards.errors import BoardError

BOARDS = (
    "ulx3s_85f", "ecpix5_85f", "orangecrab_85f", "versa_ecp5_5g", "icebreaker", "tang_nano_20k", "arty_a7_100",
    "kcu105",
)  # fmt: skip
"""Names of the boards; each is a module of this package."""


def board(name: str) -> Board:
    """The board called ``name``; BoardError names the known ones otherwise."""
    if name not in BOARDS:
        raise BoardError(f"There is no board {name!r}: choose one of {', '.join(BOARDS)}.")
    found: Board = import_module(f"statecell_boards.{name}").BOARD
    return found
