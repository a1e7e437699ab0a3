from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from statecell.spec.geometry import config
from statecell_boards.postsynthesis import ecp5_netlist, netlist_verilog
from statecell_hw.top import StateCell
from statecell_sim.benches.device import BUILD_HASH, CONFIG
from statecell_sim.runner import BenchFailure, run_bench

NAME = "statecell"
BENCH = "statecell_sim.benches.device"
CASE = "corners_equal_the_model/idle=0.0/back_pressure=0.0"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def netlist() -> dict[str, Any]:
    return ecp5_netlist(StateCell(config(CONFIG), build_hash=BUILD_HASH, multiplier="gated"), NAME)


def test_the_ecp5_netlist_equals_the_model_bit_for_bit(netlist: dict[str, Any]) -> None:
    assert run_bench(netlist_verilog(netlist, NAME), BENCH).tests > 1


def test_one_wrong_carry_cell_of_an_accumulator_is_found(netlist: dict[str, Any]) -> None:
    wrong = deepcopy(netlist)
    cells = wrong["modules"][NAME]["cells"]
    name = next(n for n, c in sorted(cells.items()) if c["type"] == "CCU2C" and "accumulator_0_0" in n)
    parameters = cells[name]["parameters"]
    parameters["INIT0"] = f"{int(parameters['INIT0'], 2) ^ 1 << 9:016b}"
    with pytest.raises(BenchFailure):
        run_bench(netlist_verilog(wrong, NAME), BENCH, testcases=[CASE])
