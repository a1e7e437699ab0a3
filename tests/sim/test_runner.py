"""The bench runner: a bench that passes, one that fails, one that runs nothing, and waveforms."""

from __future__ import annotations

from pathlib import Path

import pytest

from statecell_sim.errors import SimulatorError
from statecell_sim.loopback import Loopback
from statecell_sim.runner import BenchFailure, run_bench

BENCH = "statecell_sim.benches.loopback"
LINK_BYTES = 4

BROKEN = """
module statecell(input clk, input rst, input [32:0] i__payload, input i__valid, output i__ready,
                 output [32:0] o__payload, output o__valid, input o__ready);
  assign i__ready = o__ready;
  assign o__valid = i__valid;
  assign o__payload = i__payload ^ 33'd4;
endmodule
"""


def test_loopback_passes_every_test_of_its_bench() -> None:
    assert run_bench(Loopback(link_bytes=LINK_BYTES), BENCH, waves=False).tests == 10


def test_a_wrong_design_fails_the_bench() -> None:
    with pytest.raises(BenchFailure, match="10 of 10 tests"):
        run_bench(BROKEN, BENCH, waves=False)


def test_selecting_no_test_is_a_failure() -> None:
    with pytest.raises(BenchFailure):
        run_bench(Loopback(link_bytes=LINK_BYTES), BENCH, testcases=["no_such_test"], waves=False)


def test_waves_are_written_as_fst(tmp_path: Path) -> None:
    case = ["blocking_driver_runs_unchanged"]
    result = run_bench(Loopback(link_bytes=LINK_BYTES), BENCH, testcases=case, waves=True, waves_folder=tmp_path)
    assert result.tests == 1
    assert result.waves == tmp_path / "loopback.fst"
    header = result.waves.read_bytes()
    assert header[0] == 0, "an FST file starts with its header block"
    assert int.from_bytes(header[1:9], "big") == 329
    assert len(header) > 1000


def test_verilog_that_does_not_compile_is_one_clear_error() -> None:
    with pytest.raises(SimulatorError, match="Building the bench failed"):
        run_bench("module statecell(input clk); wibble", BENCH, waves=False)
