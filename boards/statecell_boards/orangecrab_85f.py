"""OrangeCrab r0.2 with an ECP5-85F: UART on GPIO 0 (receives) and GPIO 1 (sends), reset on its button."""

from __future__ import annotations

from amaranth.build import Attrs
from amaranth_boards.orangecrab_r0_2 import OrangeCrabR0_2_85FPlatform
from amaranth_boards.resources import UARTResource

from statecell_boards.board import Board
from statecell_boards.ecp5 import pll
from statecell_boards.floorplan import lfe5u_85f

BOARD = Board(
    name="orangecrab_85f",
    title="OrangeCrab r0.2 85F",
    part="LFE5U-85F-8MG285C",
    configuration="orangecrab_85f",
    flow="ecp5",
    platform=OrangeCrabR0_2_85FPlatform,
    clock=pll,
    resources=(UARTResource(0, rx="N17", tx="M18", attrs=Attrs(IO_TYPE="LVCMOS33", PULLMODE="UP")),),
    leds=(("rgb_led", 0, "b"), ("rgb_led", 0, "g"), ("rgb_led", 0, "r")),
    button=("button", 0),
    programmer="orangeCrab",
    interface="3.3 V serial adapter on GPIO 0 and 1",
    multiplier="mixed",
    floorplan=lfe5u_85f,
    pnr=("--85k", "--package", "CSFBGA285", "--speed", "8"),
    pack=("--compress", "--freq", "38.8"),
)
