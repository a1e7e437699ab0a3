"""ULX3S with an ECP5-85F: UART on its USB connector through the FTDI chip, reset on the button FIRE 1."""

from __future__ import annotations

from amaranth_boards.ulx3s import ULX3S_85F_Platform

from statecell_boards.board import Board
from statecell_boards.ecp5 import pll
from statecell_boards.floorplan import lfe5u_85f

BOARD = Board(
    name="ulx3s_85f",
    title="ULX3S 85F",
    part="LFE5U-85F-6BG381C",
    configuration="ulx3s_85f",
    flow="ecp5",
    platform=ULX3S_85F_Platform,
    clock=pll,
    leds=(("led", 0, ""), ("led", 1, ""), ("led", 2, "")),
    button=("button_fire", 0),
    programmer="ulx3s",
    interface="USB (FT231X)",
    multiplier="mixed",
    floorplan=lfe5u_85f,
    pnr=("--85k", "--package", "CABGA381", "--speed", "6"),
)
