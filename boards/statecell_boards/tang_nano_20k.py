"""Sipeed Tang Nano 20K: UART through the debugger chip on its USB connector, reset on the button S1."""

from __future__ import annotations

from typing import Any

from amaranth.build import Attrs, Clock, Pins, Resource
from amaranth.vendor import GowinPlatform
from amaranth_boards.resources import ButtonResources, LEDResources, UARTResource

from statecell_boards.board import Board
from statecell_boards.gowin import pll


class TangNano20kPlatform(GowinPlatform):
    """What amaranth-boards lacks: the part and the pins that this project uses."""

    part: Any = "GW2AR-LV18QN88C8/I7"
    family: Any = "GW2AR-18C"
    pll_device = "GW2AR-18C"
    default_clk: Any = "clk27"
    resources: Any = [  # noqa: RUF012  # Amaranth's platforms are made so
        Resource("clk27", 0, Pins("4", dir="i"), Clock(27e6), Attrs(IO_TYPE="LVCMOS33")),
        *ButtonResources(pins="88 87", attrs=Attrs(IO_TYPE="LVCMOS33", PULL_MODE="DOWN")),
        *LEDResources(pins="15 16 17 18 19 20", invert=True, attrs=Attrs(IO_TYPE="LVCMOS33")),
        UARTResource(0, rx="70", tx="69", attrs=Attrs(IO_TYPE="LVCMOS33", PULL_MODE="UP")),
    ]
    connectors: Any = []  # noqa: RUF012


BOARD = Board(
    name="tang_nano_20k",
    title="Tang Nano 20K",
    part="GW2AR-LV18QN88C8/I7",
    configuration="tang_nano_20k",
    flow="gowin",
    platform=TangNano20kPlatform,
    clock=pll,
    leds=(("led", 0, ""), ("led", 1, ""), ("led", 2, "")),
    button=("button", 0),
    programmer="tangnano20k",
    interface="USB (BL616)",
    pnr=("--device", "GW2AR-LV18QN88C8/I7", "--vopt", "family=GW2A-18C"),
    pack=("-d", "GW2A-18C"),
)
