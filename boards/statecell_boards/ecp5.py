"""Clock of the ECP5 boards: the PLL."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Instance, Module, ResetSignal, Signal
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer  # type: ignore[import-untyped]

from statecell_boards.fanout import LOADS

VCO_HZ = (400e6, 800e6)
COMPARE_HZ = (10e6, 400e6)
DIVISORS = range(1, 129)


def pll_divisors(in_hz: float, out_hz: int) -> tuple[int, int, int]:
    """Input, feedback and output divisor of an EHXPLLL that makes exactly ``out_hz`` of ``in_hz``.

    Raises ValueError if there are none: the oscillator runs at out_hz * CLKOP_DIV, within 400 to 800 MHz, and the
    phases are compared at in_hz / CLKI_DIV, at least 10 MHz.
    """
    for divide in DIVISORS:
        for feedback in DIVISORS:
            if in_hz * feedback != out_hz * divide or not COMPARE_HZ[0] <= in_hz / divide <= COMPARE_HZ[1]:
                continue
            outputs = [d for d in DIVISORS if VCO_HZ[0] <= out_hz * d <= VCO_HZ[1]]
            if outputs:
                return divide, feedback, min(outputs, key=lambda d: abs(out_hz * d - sum(VCO_HZ) / 2))
    raise ValueError(f"no PLL setting makes {out_hz / 1e6:g} MHz from {in_hz / 1e6:g} MHz; choose another clock")


def pll(m: Module, platform: Any, clock_hz: int, reset: Signal) -> None:
    """Clock domain `sync` from the board's default clock through a PLL."""
    source = platform.default_clk
    m.submodules.clock_in = clock_in = io.Buffer(io.Direction.Input, platform.request(source, dir="-"))
    divide, feedback, output = pll_divisors(platform.default_clk_constraint.frequency, clock_hz)
    domain: Any = ClockDomain("sync")
    m.domains.sync = domain
    locked = Signal()
    m.submodules.pll = Instance(
        "EHXPLLL",
        a_ICP_CURRENT="12", a_LPF_RESISTOR="8", a_MFG_ENABLE_FILTEROPAMP="1", a_MFG_GMCREF_SEL="2",
        p_PLLRST_ENA="DISABLED", p_INTFB_WAKE="DISABLED", p_STDBY_ENABLE="DISABLED", p_DPHASE_SOURCE="DISABLED",
        p_OUTDIVIDER_MUXA="DIVA", p_OUTDIVIDER_MUXB="DIVB", p_OUTDIVIDER_MUXC="DIVC", p_OUTDIVIDER_MUXD="DIVD",
        p_CLKI_DIV=divide, p_CLKFB_DIV=feedback, p_CLKOP_DIV=output, p_CLKOP_ENABLE="ENABLED",
        p_CLKOP_CPHASE=output // 2, p_CLKOP_FPHASE=0, p_FEEDBK_PATH="CLKOP",
        i_RST=0, i_STDBY=0, i_CLKI=clock_in.i, i_CLKFB=domain.clk,
        i_PHASESEL0=0, i_PHASESEL1=0, i_PHASEDIR=1, i_PHASESTEP=1, i_PHASELOADREG=1, i_PLLWAKESYNC=0, i_ENCLKOP=0,
        o_CLKOP=domain.clk, o_LOCK=locked,
    )
    platform.add_clock_constraint(domain.clk, clock_hz)
    # the reset reaches registers everywhere: from the synchroniser to the middle of the chip, to copies, to them
    m.domains.early, m.domains.always = ClockDomain("early"), ClockDomain("always", reset_less=True)
    stages = [Signal(init=1, name=f"reset_{i}", attrs={LOADS: 8}) for i in range(2)]
    m.d.comb += [ClockSignal(name).eq(domain.clk) for name in ("early", "always")]
    m.submodules.reset = ResetSynchronizer(reset | ~locked, domain="early")
    m.d.always += [stages[0].eq(ResetSignal("early")), stages[1].eq(stages[0])]
    m.d.comb += domain.rst.eq(stages[1])
