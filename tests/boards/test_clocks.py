from __future__ import annotations

import pytest

from statecell_boards import ecp5, gowin, ice40, xilinx
from statecell_boards.registry import BOARDS, board


@pytest.mark.parametrize(("source", "target"), [(25e6, 87_500_000), (100e6, 100_000_000), (48e6, 96_000_000)])
def test_ecp5_divisors_make_the_clock_within_the_limits(source: float, target: int) -> None:
    divide, feedback, output = ecp5.pll_divisors(source, target)
    assert source / divide * feedback == target
    assert 400e6 <= target * output <= 800e6 and source / divide >= 10e6


def test_gowin_divisors_make_the_clock_within_the_limits() -> None:
    divide, feedback, output = gowin.pll_divisors(27e6, 54_000_000)
    assert 27e6 / divide * feedback == 54e6 and 500e6 <= 54e6 * output <= 1250e6


def test_ice40_divisors_make_the_clock_within_the_limits() -> None:
    feedback, log = ice40.pll_divisors(12e6, 24_000_000)
    assert 12e6 * feedback / 2**log == 24e6 and 533e6 <= 12e6 * feedback <= 1066e6


@pytest.mark.parametrize(("source", "target"), [(100e6, 100_000_000), (125e6, 125_000_000)])
def test_xilinx_divisors_make_the_clock_within_the_limits(source: float, target: int) -> None:
    multiply, divide = xilinx.mmcm_divisors(source, target)
    assert source * multiply / divide == target and 600e6 <= source * multiply <= 1200e6


@pytest.mark.parametrize("make", [ecp5.pll_divisors, gowin.pll_divisors, ice40.pll_divisors, xilinx.mmcm_divisors])
def test_a_clock_that_cannot_be_made_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"makes 87.6543 MHz from 25 MHz; choose another clock"):
        make(25e6, 87_654_300)  # type: ignore[operator]


@pytest.mark.parametrize("name", BOARDS)
def test_every_boards_oscillator_gives_its_clock(name: str) -> None:
    chosen = board(name)
    makers = {
        "ecp5": ecp5.pll_divisors, "gowin": gowin.pll_divisors, "ice40": ice40.pll_divisors,
        "xilinx": xilinx.mmcm_divisors,
    }  # fmt: skip
    platform = chosen.platform()
    makers[chosen.flow](platform.default_clk_constraint.frequency, chosen.clock_hz)
