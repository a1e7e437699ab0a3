"""Clock of the iCE40 boards: the PLL at the clock's own pin."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, Instance, Module, Signal
from amaranth.lib.cdc import ResetSynchronizer  # type: ignore[import-untyped]

VCO_HZ = (533e6, 1066e6)
COMPARE_HZ = (10e6, 16e6)
"""The range of phase comparison that FILTER_RANGE 1 is for."""
FEEDBACK = range(1, 129)
OUTPUTS = range(1, 7)
MEMORY_S = 15e-6
"""Block RAMs read as zero for some microseconds after the configuration."""


def pll_divisors(in_hz: float, out_hz: int) -> tuple[int, int]:
    """Feedback divisor, and log2 of the output divisor, of a PLL that makes exactly ``out_hz`` of ``in_hz``.

    Raises ValueError if there are none: the oscillator runs at out_hz * 2^DIVQ, within 533 to 1066 MHz, and in_hz,
    which is compared undivided, lies within 10 to 16 MHz.
    """
    for feedback in FEEDBACK:
        for log in OUTPUTS:
            vco = out_hz << log
            if COMPARE_HZ[0] <= in_hz <= COMPARE_HZ[1] and VCO_HZ[0] <= vco <= VCO_HZ[1] and in_hz * feedback == vco:
                return feedback, log
    raise ValueError(f"no PLL setting makes {out_hz / 1e6:g} MHz from {in_hz / 1e6:g} MHz; choose another clock")


def pll(m: Module, platform: Any, clock_hz: int, reset: Signal) -> None:
    """Clock domain `sync` from the board's default clock through a PLL; in reset until the block RAMs can be read."""
    feedback, log = pll_divisors(platform.default_clk_constraint.frequency, clock_hz)
    domain: Any = ClockDomain("sync")
    start: Any = ClockDomain("start", reset_less=True)
    m.domains += [domain, start]
    locked = Signal()
    m.submodules.pll = Instance(
        "SB_PLL40_PAD",
        p_FEEDBACK_PATH="SIMPLE", p_DIVR=0, p_DIVF=feedback - 1, p_DIVQ=log, p_FILTER_RANGE=1,
        i_PACKAGEPIN=platform.request(platform.default_clk, dir="-").io, i_RESETB=1, i_BYPASS=0,
        o_PLLOUTGLOBAL=domain.clk, o_LOCK=locked,
    )
    waited = Signal(range(round(MEMORY_S * clock_hz) + 1))
    ready = Signal()
    m.d.comb += [start.clk.eq(domain.clk), ready.eq(waited == round(MEMORY_S * clock_hz))]
    with m.If(locked & ~ready):
        m.d.start += waited.eq(waited + 1)
    m.submodules.reset = ResetSynchronizer(reset | ~ready, domain="sync")
