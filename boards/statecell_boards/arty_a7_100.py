"""Digilent Arty A7-100T: UART on its USB connector, reset on the button BTN0."""

from __future__ import annotations

from amaranth_boards.arty_a7 import ArtyA7_100Platform

from statecell_boards.board import Board
from statecell_boards.xilinx import mmcm

BOARD = Board(
    name="arty_a7_100",
    title="Arty A7-100T",
    part="xc7a100ticsg324-1L",
    configuration="arty_a7_100",
    flow="xilinx",
    platform=ArtyA7_100Platform,
    clock=mmcm,
    leds=(("led", 0, ""), ("led", 1, ""), ("led", 2, "")),
    button=("button", 0),
    programmer="arty_a7_100t",
    interface="USB (FT2232)",
    pnr=("xc7",),
)
