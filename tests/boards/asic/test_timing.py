from __future__ import annotations

from pathlib import Path

import pytest

from statecell_boards.asic.timing import Timing, find_sta, parsed
from statecell_boards.errors import BoardError

REPORT = """Warning: tile.v line 3, something harmless.
Startpoint: keys/memory/memory (rising edge-triggered flip-flop clocked by clk)
Endpoint: dot/_9_ (rising edge-triggered flip-flop clocked by clk)
Path Group: clk
Path Type: max

   Delay     Time   Description
-----------------------------------------------------------
   0.000    0.000   clock clk (rise edge)
   0.000    0.000 ^ keys/memory/memory/clk (statecell_memory_64x136)
   2.500    2.500 v keys/memory/memory/read_data[3] (statecell_memory_64x136)
   0.293    2.793 ^ dot/_7_/Y (NAND3X1)
   0.123    2.916 v dot/_8_/Y (NOR2X1)
   0.000    2.916 v dot/_9_/D (DFFPOSX1)
            2.916   data arrival time

   8.000    8.000   clock clk (rise edge)
            8.000 ^ dot/_9_/CLK (DFFPOSX1)
  -0.186    7.814   library setup time
-----------------------------------------------------------
            4.898   slack (MET)


worst slack 4.90
"""


def test_a_report() -> None:
    found = parsed(REPORT, period_ns=8.0)
    assert found == Timing(start="keys/memory/memory", end="dot/_9_", cells=2, delay_ns=3.1)
    assert found.fmax_mhz == pytest.approx(1000 / 3.1)


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ("Error: tile.v, line 5 syntax error.\n" + REPORT, r"could not read the netlist: tile.v, line 5 syntax error"),
        ("No paths found.\nworst slack INF\n", "no path between two registers"),
    ],
)
def test_a_report_of_nothing(report: str, message: str) -> None:
    with pytest.raises(BoardError, match=message):
        parsed(report, period_ns=8.0)


def test_an_opensta_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sta"
    program.write_text("#!/bin/sh\necho 'error while loading shared libraries: libtcl8.6.so' >&2\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BoardError, match=r"does not run here \(error .*libtcl8.6.so\): run `apt-get install opensta`"):
        find_sta()


def test_a_machine_that_the_package_is_not_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(BoardError, match="OpenSTA is not installed: run `apt-get install opensta`, or give --area-on"):
        find_sta()
