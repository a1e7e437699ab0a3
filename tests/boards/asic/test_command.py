from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from statecell.spec.geometry import GeometryError
from statecell_boards.asic import command
from statecell_boards.asic.command import app
from statecell_boards.asic.library import Library
from statecell_boards.asic.macro import Macro
from statecell_boards.asic.synthesis import Area, Block
from statecell_boards.asic.timing import Timing
from statecell_boards.errors import BoardError

FOUND = Area(
    blocks=[Block(name="tile.dot", cells=70, um2=3e6), Block(name="tile", cells=5, um2=1e6)],
    memories=[Macro(block="tile.keys.memory", width=272, rows=4096, address=12)], bit_um2=8.0,
)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(command, "fetch_library", lambda: Library(text="library(some_cells) {}"))
    monkeypatch.setattr(command, "find_sta", lambda: Path("/sta"))
    monkeypatch.setattr(command, "Tile", lambda *_, **__: None)  # a block that is made and not used is an error
    monkeypatch.setattr(command, "synthesise", lambda *_, **__: FOUND)
    found = Timing(start="dot/_1_", end="dot/_2_", cells=30, delay_ns=6.25)
    monkeypatch.setattr(command, "analyse", lambda *_, **__: found)


def test_json(tools: None) -> None:
    made = json.loads(CliRunner().invoke(app, ["--config", "tiny", "--json"]).stdout)
    assert (made["library"], made["estimate"], made["config"]) == ("some_cells", True, "tiny")
    assert made["blocks"][0] == {"block": "tile.dot", "cells": 70, "um2": 3e6, "share": 0.75}
    assert made["memories"] == [
        {"memory": "tile.keys.memory", "rows": 4096, "width": 272, "bits": 1114112, "um2": 8912896.0}
    ]
    assert (made["logic_um2"], made["memory_um2"], made["timing"]["fmax_mhz"]) == (4e6, 8912896.0, 160.0)


def test_the_table_is_headed_by_library_and_estimate(tools: None) -> None:
    shown = " ".join(CliRunner().invoke(app, ["--config", "tiny"]).stdout.split())
    assert shown.startswith("OSU 0.18 um (some_cells), estimate: tiny tile, native multipliers, no wires")
    assert "75.0 %" in shown and "100.0 %" in shown and "8.0 um2 a bit assumed" in shown and "160" in shown


def test_without_timing(tools: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise BoardError("OpenSTA is not installed")

    monkeypatch.setattr(command, "find_sta", missing)
    assert json.loads(CliRunner().invoke(app, ["-c", "tiny", "--area-only", "--json"]).stdout)["timing"] is None
    monkeypatch.setattr(command, "synthesise", lambda *_, **__: pytest.fail("a long run that ends without its timing"))
    assert isinstance(CliRunner().invoke(app, ["-c", "tiny"]).exception, BoardError)


@pytest.mark.parametrize("option", ["--period", "--bit-area"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_numbers_are_explained(tools: None, option: str, value: str) -> None:
    result = CliRunner().invoke(app, [option, value])
    assert isinstance(result.exception, BoardError) and "give a number above 0" in str(result.exception)


def test_an_unknown_configuration_is_explained(tools: None) -> None:
    assert isinstance(CliRunner().invoke(app, ["-c", "huge"]).exception, GeometryError)


def test_help_has_an_example() -> None:
    assert "Example: statecell asic --config smollm2 --json" in CliRunner().invoke(app, ["--help"]).stdout
