"""iCEBreaker with an iCE40 UP5K: UART through the FTDI chip on its USB connector, reset on the user button.

The LEDs are those of the section with three buttons that can be broken off, on PMOD 2.
"""

from __future__ import annotations

from amaranth_boards.icebreaker import ICEBreakerPlatform

from statecell_boards.board import Board
from statecell_boards.ice40 import pll

BOARD = Board(
    name="icebreaker",
    title="iCEBreaker",
    part="iCE40UP5K-SG48",
    configuration="icebreaker",
    flow="ice40",
    platform=ICEBreakerPlatform,
    clock=pll,
    resources=tuple(ICEBreakerPlatform.break_off_pmod),
    leds=(("led_g", 1, ""), ("led_g", 2, ""), ("led_r", 1, "")),
    button=("button", 0),
    programmer="ice40_generic",
    interface="USB (FT2232H)",
    load=("--write-flash",),  # the FPGA's own memory is reached only with the jumpers changed
    pnr=("--up5k", "--package", "sg48"),
)
