"""AMD KCU105 with a Kintex UltraScale: UART on its USB connector, reset on the button CPU_RESET."""

from __future__ import annotations

from amaranth.build import Attrs, Pins, Resource
from amaranth_boards.kcu105 import KCU105Platform
from amaranth_boards.resources import UARTResource

from statecell_boards.board import Board
from statecell_boards.xilinx import mmcm

BOARD = Board(
    name="kcu105",
    title="KCU105",
    part="xcku040-ffva1156-2-e",
    configuration="kcu105",
    flow="xilinx",
    platform=KCU105Platform,
    clock=mmcm,
    resources=(
        UARTResource(0, rx="G25", tx="K26", attrs=Attrs(IOSTANDARD="LVCMOS18")),
        Resource("rst", 0, Pins("AN8", dir="i"), Attrs(IOSTANDARD="LVCMOS18")),
    ),
    leds=(("led", 0, ""), ("led", 1, ""), ("led", 2, "")),
    button=("rst", 0),
    programmer="kcu105",
    interface="USB (CP2105)",
    pnr=("xcu",),
)
