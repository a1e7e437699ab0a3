"""ECPIX-5 with an ECP5-5G-85F: UART on the debug USB connector, reset on the reset button."""

from __future__ import annotations

from amaranth_boards.ecpix5 import ECPIX585Platform

from statecell_boards.board import Board
from statecell_boards.ecp5 import pll
from statecell_boards.floorplan import lfe5u_85f

BOARD = Board(
    name="ecpix5_85f",
    title="ECPIX-5 85F",
    part="LFE5UM5G-85F-8BG554I",
    configuration="ecpix5_85f",
    flow="ecp5",
    platform=ECPIX585Platform,
    clock=pll,
    leds=(("rgb_led", 0, "b"), ("rgb_led", 1, "g"), ("rgb_led", 2, "r")),
    button=("rst", 0),
    programmer="ecpix5",
    interface="USB (FT2232)",
    multiplier="mixed",
    floorplan=lfe5u_85f,
    pnr=("--um5g-85k", "--package", "CABGA554", "--speed", "8"),
)
