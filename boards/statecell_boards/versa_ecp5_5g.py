"""Lattice ECP5-5G Versa with an ECP5-5G-45F: UART on its USB connector, reset on the button GSRN."""

from __future__ import annotations

from amaranth_boards.versa_ecp5_5g import VersaECP55GPlatform

from statecell_boards.board import Board
from statecell_boards.ecp5 import pll

BOARD = Board(
    name="versa_ecp5_5g",
    title="ECP5-5G Versa",
    part="LFE5UM5G-45F-8BG381C",
    configuration="versa_ecp5_5g",
    flow="ecp5",
    platform=VersaECP55GPlatform,
    clock=pll,
    leds=(("led", 0, ""), ("led", 1, ""), ("led", 2, "")),
    button=("rst", 0),
    programmer="ecp5_evn",
    interface="USB (FT2232)",
    pnr=("--um5g-45k", "--package", "CABGA381", "--speed", "8"),
)
