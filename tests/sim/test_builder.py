"""The cache of compiled simulators: reuse, failure, missing tools, two processes, clearing."""

from __future__ import annotations

import multiprocessing
import re
import time
from pathlib import Path

import pytest

from statecell_hw import emit
from statecell_sim import toolchain
from statecell_sim.builder import build_library
from statecell_sim.errors import SimulatorError, ToolMissingError
from statecell_sim.simulator import library_of, open_transport

TOP = "module statecell(input clk, input rst);\nendmodule\n"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path))
    return tmp_path


def entries(cache: Path) -> list[Path]:
    return [entry for entry in (cache / "simulator").iterdir() if entry.is_dir()]


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(ToolMissingError, match=r"g\+\+, make, perl cannot be found: install with `apt install g"):
        build_library(TOP, 4)
    assert not any(cache.iterdir())


@pytest.mark.parametrize("name", ["g++", "make", "perl"])
def test_missing_programs_are_named_before_any_work(name: str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(toolchain, "missing_programs", lambda: [name])
    monkeypatch.setattr(emit, "emit_verilog", lambda *_, **__: pytest.fail("emitted in vain"))
    with pytest.raises(ToolMissingError, match=rf"{re.escape(name)} cannot be found"):
        library_of("tiny")
    assert not any(cache.iterdir())


def test_a_waveform_file_is_checked_before_any_work(cache: Path) -> None:
    with pytest.raises(SimulatorError, match="Waveforms cannot be written"):
        open_transport(f"tiny?trace={cache}/missing/x.fst", timeout=1.0)
    assert not any(cache.iterdir())


def test_failed_build_is_one_error_and_leaves_nothing(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SimulatorError, match="failed in verilator"):
        build_library("module statecell(input clk; endmodule", 4)
    assert entries(cache) == []
    assert "Building the simulator" in capfd.readouterr().err


def test_link_width_is_checked() -> None:
    with pytest.raises(ValueError, match="must be 1 to 64"):
        build_library(TOP, 0)


def test_key_depends_on_every_part_and_on_their_limits() -> None:
    keys = [toolchain.cache_key(*parts) for parts in (("a", "b"), ("ab",), ("a", "c"), ("a", "b", ""), ())]
    assert len(set(keys)) == len(keys)


def test_folder_is_built_once_and_cleared(cache: Path) -> None:
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "made").write_text("x")

    first = toolchain.cached("key", "title", build, progress=False)
    assert toolchain.cached("key", "title", build, progress=False) == first
    assert (first / "made").read_text() == "x"
    assert len(built) == 1
    assert toolchain.clear_cache() == 1
    assert not first.exists()
    assert toolchain.clear_cache() == 0


def _slow_build(log: Path) -> None:
    def build(folder: Path) -> None:
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.5)
        (folder / "made").write_text("x")

    assert (toolchain.cached("shared", "title", build, progress=False) / "made").read_text() == "x"


def test_of_two_processes_one_builds(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    processes = [context.Process(target=_slow_build, args=(log,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text() == "built\n"
