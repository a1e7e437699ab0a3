"""The serial link measured and disturbed; a board that carries out repeats is found out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from statecell.bench.attention import BenchError
from statecell.bench.link import bench_faults, bench_link
from statecell.cli.app import app
from statecell_hw import emit
from statecell_hw.link import intake
from statecell_sim import board as board_module
from statecell_sim.board import Board, Faults, Wire
from statecell_sim.builder import build_board

CONFIG = "tiny"
SEED = 5


@pytest.mark.parametrize(("rate", "commands"), [(1e-4, 150), (1e-3, 100)])
def test_faults_on_the_pins_change_no_result(rate: float, commands: int) -> None:
    found = bench_faults(f"board:{CONFIG}?faults={rate}&seed={SEED}", fault_rate=rate, commands=commands, seed=SEED)
    assert found.wrong == 0 and found.commands == commands
    assert found.damaged > 0 and found.retries > 0, "nothing was disturbed; choose another seed"


@pytest.mark.parametrize("wire", ["uart", "bytes"])
def test_outages_of_the_cable_change_no_result(wire: str) -> None:
    url = f"board:{CONFIG}?transport={wire}&faults=0.0005&outage=0.0002&seed={SEED}"
    found = bench_faults(url, fault_rate=5e-4, outage_rate=2e-4, commands=120, seed=SEED)
    assert found.wrong == 0 and found.timeouts > 0 and found.outage_rate == 2e-4


@pytest.mark.parametrize("fault", ["faults=0.001", "outage=0.0005"])
def test_a_board_that_carries_out_repeats_is_found_out(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A mutant of the intake in which every frame of a session has its turn, on disturbed pins."""
    source = Path(intake.__file__).read_text(encoding="utf-8")
    assert source.count("known & (past == 0)") == 1
    mutant: dict[str, Any] = {"__name__": "careless_intake"}
    exec(source.replace("known & (past == 0)", "known"), mutant)
    monkeypatch.setattr("statecell_hw.serial.Intake", mutant["Intake"])
    g = board_module.board_geometry(CONFIG)
    library = build_board(emit.emit_verilog(g, flat=True, link="uart"), pins=True)

    def careless(name: str, wire: Wire, faults: Faults) -> Board:
        return Board(library, clock_hz=g.clock_hz, faults=faults)

    monkeypatch.setattr(board_module, "board_of", careless)
    assert bench_faults(f"board:{CONFIG}?{fault}&seed={SEED}", fault_rate=0, commands=120, seed=SEED).wrong > 0


def test_the_link_is_measured() -> None:
    found = bench_link(f"board:{CONFIG}?transport=bytes")
    # 16 + 16 + 128 + 4 bytes and 16 + 128 + 16 + 4, a code byte and a delimiter each; 16 + 128 + 4 and 16 + 4.
    assert (found.attend_bytes, found.append_bytes) == (166 + 166, 150 + 22)
    assert found.payload_share == 256 / 332 and found.token_layer_bytes == 3 * (332 + 172)
    with pytest.raises(BenchError, match="not on a serial link"):
        bench_link(f"sim:{CONFIG}")


def test_the_command_measures_and_disturbs() -> None:
    device = f"board:{CONFIG}?transport=bytes"
    arguments = ["bench", "link", "--device", device, "--faults", "0.001,0.002", "--commands", "60", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["payload_share"] > 0.7 and found["device"] == device
    assert [(line["fault_rate"], line["commands"], line["wrong"]) for line in found["faults"]] == [
        (0.001, 60, 0), (0.002, 60, 0)
    ]  # fmt: skip


def test_outages_are_explained() -> None:
    result = CliRunner().invoke(app, ["bench", "link", "--device", "board:tiny", "--outage", "0.1"])
    assert result.exit_code == 2 and "give --faults too" in " ".join(result.output.split())


@pytest.mark.parametrize("faults", ["much", "2", "-1"])
def test_fault_rates_are_explained(faults: str) -> None:
    result = CliRunner().invoke(app, ["bench", "link", "--device", "board:tiny", "--faults", faults])
    assert result.exit_code == 2 and "list of probabilities" in " ".join(result.output.split())


def test_only_a_simulated_board_can_be_disturbed() -> None:
    result = CliRunner().invoke(app, ["bench", "link", "--device", "serial:///dev/none", "--faults", "0.1"])
    assert isinstance(result.exception, BenchError)
