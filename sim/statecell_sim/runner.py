"""The one way to run cocotb benches: cocotb's runner and Verilator, with the build cached and the result checked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

from amaranth.back import verilog as backend
from amaranth.lib import wiring
from cocotb_tools.check_results import get_results
from cocotb_tools.runner import get_runner

from statecell_sim.errors import SimulatorError
from statecell_sim.toolchain import cache_key, cached, environment, prepare_fst

OPTIMISE = "-O1"  # a bench spends its time in Python: compile quickly
BUILD_ARGS = ("-Wno-WIDTH", "-Wno-fatal", "-Wno-lint", "--x-assign", "fast", "--x-initial", "fast")


class BenchFailure(AssertionError):
    """A bench failed, or ran no test at all."""


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """`tests`: tests that ran, all passed. `waves`: the FST file, if one was asked for. `log`: what the run printed."""

    tests: int
    waves: Path | None
    log: str


def run_bench(
    design: str | wiring.Component,
    test_module: str,
    *,
    top: str = "statecell",
    seed: int = 1,
    waves: bool | None = None,
    waves_folder: Path | None = None,
    waves_name: str | None = None,
    env: Mapping[str, str] | None = None,
    testcases: Sequence[str] = (),
    progress: bool = True,
) -> BenchResult:
    """Build a design for cocotb, unless the cache has it, and run the tests of a Python module against it.

    `design` is Verilog, or a component that is emitted as module `top`. `test_module` must be importable from this
    process; it reads the variables of `env`. `testcases` selects tests by name; without it all run. With `waves`
    (default: the environment's WAVES=1) the signals are written to `waves_folder`/`waves_name`.fst, by default in
    build/waves below the working folder, named as the test module.

    Raises BenchFailure, with the end of the log, if a test fails, is skipped or none ran; SimulatorError and
    ToolMissingError if the design cannot be built.
    """
    if waves is None:
        waves = os.environ.get("WAVES", "0") not in ("", "0")
    folder = _built(_verilog(design, top), top, waves, progress)
    target = None
    if waves:
        name = waves_name or test_module.rpartition(".")[2]
        target = (waves_folder or Path("build", "waves")).absolute() / f"{name}.fst"
        target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="statecell-bench-") as run:
        results, log = Path(run, "results.xml"), Path(run, "run.log")
        arguments = ["--trace-file", str(target)] if target else []
        with _environment({"WAVES": str(int(waves))}):
            runner = get_runner("verilator")
            # A failing bench ends the simulator with an error status; the results file says more.
            with suppress(RuntimeError, SystemExit):
                runner.test(
                    test_module=test_module,
                    hdl_toplevel=top,
                    hdl_toplevel_lang="verilog",
                    testcase=list(testcases) or None,
                    seed=seed,
                    test_args=arguments,
                    extra_env=dict(env or {}),
                    waves=waves,
                    build_dir=folder,
                    test_dir=run,
                    results_xml=str(results),
                    log_file=log,
                )
        output = log.read_text(errors="replace") if log.is_file() else ""
        return BenchResult(tests=_count(results, f"{test_module} (seed {seed})", output), waves=target, log=output)


def _count(results: Path, name: str, output: str) -> int:
    """The number of tests that passed; raises BenchFailure unless that is all of them and at least one."""
    tail = output[-6000:]
    try:
        tests, failed = get_results(results)
    except RuntimeError as error:
        raise BenchFailure(f"The bench {name} ended without results:\n{tail}") from error
    if failed:
        raise BenchFailure(f"{failed} of {tests} tests of the bench {name} failed:\n{tail}")
    # A module whose tests are all skipped or deselected must not look like success.
    skipped = len(ET.parse(results).getroot().findall(".//skipped"))
    if skipped or tests == 0:
        raise BenchFailure(
            f"The bench {name} ran {tests - skipped} of its {tests} tests; it must run all, at least one."
        )
    return tests


def _verilog(design: str | wiring.Component, top: str) -> str:
    """The Verilog of a design, without source lines, so that the compiled bench outlives a change of comments."""
    if isinstance(design, str):
        return design
    return str(backend.convert(design, name=top, emit_src=False, strip_internal_attrs=True))


def _built(text: str, top: str, waves: bool, progress: bool) -> Path:
    """The folder of the compiled bench for a Verilog text."""
    key = cache_key("bench", text, top, str(waves), version("cocotb"), OPTIMISE, *BUILD_ARGS)

    def build(folder: Path) -> None:
        source = folder / "top.v"
        source.write_text(text)
        log = folder / "build.log"
        with _environment({"WAVES": str(int(waves)), **environment(optimise=OPTIMISE)}):
            extra = prepare_fst(folder) if waves else []
            try:
                get_runner("verilator").build(
                    sources=[source],
                    hdl_toplevel=top,
                    build_dir=folder,
                    build_args=[*BUILD_ARGS, *extra],
                    waves=waves,
                    log_file=log,
                )
            except (RuntimeError, SystemExit) as error:
                lines = [line for line in log.read_text(errors="replace").splitlines() if "rror" in line]
                raise SimulatorError("Building the bench failed: " + " | ".join(lines[:5])) from error

    return cached(key, "Building the bench", build, progress=progress)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process for a while: cocotb's runner reads them from there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
