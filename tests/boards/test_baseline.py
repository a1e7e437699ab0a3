from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from statecell_boards import baseline
from statecell_boards.commands import boards_app
from statecell_boards.errors import BoardError
from statecell_boards.registry import board
from statecell_hw.emit import build_hash

NAME = "ulx3s_85f"
BASE: dict[str, Any] = {
    "board": NAME, "config": NAME, "fmax_mhz": 100.0, "clock_mhz": 87.5,
    "lut": 50_000, "ff": 40_000, "bram": 130, "dsp": 8
}


@pytest.mark.parametrize(("change", "words"), [
    ({}, []),
    ({"lut": 51_000, "fmax_mhz": 97.0}, []),
    ({"lut": 51_001}, ["lut 51,001 against 50,000"]),
    ({"ff": 40_801}, ["ff 40,801 against 40,000"]),
    ({"bram": 133}, ["bram 133 against 130"]),
    ({"fmax_mhz": 96.9}, ["fmax 96.9 MHz against 100.0 MHz"]),
    ({"lut": 40_000, "fmax_mhz": 120.0}, []),
])
def test_only_what_is_worse_than_allowed_is_named(change: dict[str, Any], words: list[str]) -> None:
    assert baseline.complaints(BASE | change, BASE) == words


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build folder with a summary of these sources, and no baselines yet."""
    summary = BASE | {"build": f"{build_hash(board(NAME).geometry):016x}"}
    (tmp_path / "build" / NAME).mkdir(parents=True)
    (tmp_path / "build" / NAME / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setattr(baseline, "FOLDER", tmp_path / "baselines")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "build" / NAME / "summary.json"


def test_the_check_fails_on_a_worse_build_until_the_baseline_is_recorded(built: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(boards_app, ["--record", NAME]).exit_code == 0
    assert runner.invoke(boards_app, ["--check", NAME]).exit_code == 0
    worse = json.loads(built.read_text()) | {"lut": 60_000}
    built.write_text(json.dumps(worse))
    failed = runner.invoke(boards_app, ["--check", NAME])
    assert failed.exit_code == 1 and "lut 60,000 against 50,000" in failed.output
    assert runner.invoke(boards_app, ["--record", NAME]).exit_code == 0
    assert runner.invoke(boards_app, ["--check", NAME]).exit_code == 0


def test_a_check_needs_a_build_of_these_sources_and_a_baseline(built: Path) -> None:
    with pytest.raises(BoardError, match="no baseline"):
        baseline.check(board(NAME), Path("build"))
    built.write_text(json.dumps(BASE | {"build": "0" * 16}))
    with pytest.raises(BoardError, match="other sources"):
        baseline.check(board(NAME), Path("build"))
    built.unlink()
    with pytest.raises(BoardError, match=f"make bitstream BOARD={NAME}"):
        baseline.record(board(NAME), Path("build"))
