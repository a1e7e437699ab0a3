"""Clock of the Xilinx boards: the mixed-mode clock manager."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Instance, Module, Signal
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer  # type: ignore[import-untyped]

VCO_HZ = (600e6, 1200e6)
"""Limits that the slowest grades of the 7 series and of UltraScale share."""
MULTIPLIERS = range(2, 65)
DIVISORS = range(1, 129)


def mmcm_divisors(in_hz: float, out_hz: int) -> tuple[int, int]:
    """Multiplier and output divisor of an MMCM that makes exactly ``out_hz`` of ``in_hz``.

    Raises ValueError if there are none: the oscillator runs at in_hz * multiplier, within 600 to 1200 MHz.
    """
    for multiply in MULTIPLIERS:
        for divide in DIVISORS:
            if VCO_HZ[0] <= in_hz * multiply <= VCO_HZ[1] and in_hz * multiply == out_hz * divide:
                return multiply, divide
    raise ValueError(f"no MMCM setting makes {out_hz / 1e6:g} MHz from {in_hz / 1e6:g} MHz; choose another clock")


def mmcm(m: Module, platform: Any, clock_hz: int, reset: Signal) -> None:
    """Clock domain `sync` from the board's default clock through an MMCM and a global buffer."""
    m.submodules.clock_in = clock_in = io.Buffer(io.Direction.Input, platform.request(platform.default_clk, dir="-"))
    in_hz = platform.default_clk_constraint.frequency
    multiply, divide = mmcm_divisors(in_hz, clock_hz)
    m.domains.sync = ClockDomain("sync")
    made, feedback, locked = Signal(), Signal(), Signal()
    m.submodules.mmcm = Instance(
        "MMCME2_BASE" if platform.family == "series7" else "MMCME3_BASE",
        p_CLKIN1_PERIOD=1e9 / in_hz, p_CLKFBOUT_MULT_F=float(multiply), p_CLKOUT0_DIVIDE_F=float(divide),
        i_CLKIN1=clock_in.i, i_CLKFBIN=feedback, i_PWRDWN=0, i_RST=0,
        o_CLKFBOUT=feedback, o_CLKOUT0=made, o_LOCKED=locked,
    )
    m.submodules.buffer = Instance("BUFG", i_I=made, o_O=ClockSignal("sync"))
    m.submodules.reset = ResetSynchronizer(reset | ~locked, domain="sync")
