"""Clock of the Gowin boards: the PLL."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, Instance, Module, Signal
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer  # type: ignore[import-untyped]

VCO_HZ = (500e6, 1250e6)
OUTPUTS = (2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)
DIVISORS = range(1, 65)


def pll_divisors(in_hz: float, out_hz: int) -> tuple[int, int, int]:
    """Input, feedback and output divisor of an rPLL that makes exactly ``out_hz`` of ``in_hz``.

    Raises ValueError if there are none: the oscillator runs at out_hz * ODIV, within 500 to 1250 MHz.
    """
    for divide in DIVISORS:
        for feedback in DIVISORS:
            outputs = [d for d in OUTPUTS if VCO_HZ[0] <= out_hz * d <= VCO_HZ[1]]
            if in_hz * feedback == out_hz * divide and outputs:
                return divide, feedback, outputs[0]
    raise ValueError(f"no PLL setting makes {out_hz / 1e6:g} MHz from {in_hz / 1e6:g} MHz; choose another clock")


def pll(m: Module, platform: Any, clock_hz: int, reset: Signal) -> None:
    """Clock domain `sync` from the board's default clock through a PLL."""
    m.submodules.clock_in = clock_in = io.Buffer(io.Direction.Input, platform.request(platform.default_clk, dir="-"))
    in_hz = platform.default_clk_constraint.frequency
    divide, feedback, output = pll_divisors(in_hz, clock_hz)
    domain: Any = ClockDomain("sync")
    m.domains.sync = domain
    locked = Signal()
    m.submodules.pll = Instance(
        "rPLL",
        p_DEVICE=platform.pll_device, p_FCLKIN=f"{in_hz / 1e6:g}",
        p_IDIV_SEL=divide - 1, p_FBDIV_SEL=feedback - 1, p_ODIV_SEL=output,
        p_DYN_IDIV_SEL="false", p_DYN_FBDIV_SEL="false", p_DYN_ODIV_SEL="false", p_DYN_DA_EN="false",
        p_PSDA_SEL="0000", p_DUTYDA_SEL="1000", p_DYN_SDIV_SEL=2, p_CLKFB_SEL="internal",
        p_CLKOUT_BYPASS="false", p_CLKOUTP_BYPASS="false", p_CLKOUTD_BYPASS="false",
        p_CLKOUTD_SRC="CLKOUT", p_CLKOUTD3_SRC="CLKOUT",
        i_CLKIN=clock_in.i, i_CLKFB=0, i_RESET=0, i_RESET_P=0,
        i_FBDSEL=0, i_IDSEL=0, i_ODSEL=0, i_PSDA=0, i_DUTYDA=0, i_FDLY=0,
        o_CLKOUT=domain.clk, o_LOCK=locked,
    )
    m.submodules.reset = ResetSynchronizer(reset | ~locked, domain="sync")
