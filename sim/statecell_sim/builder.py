"""Emitted Verilog to a shared library that simulates the design in a harness written in C++."""

from __future__ import annotations

import shutil
from pathlib import Path

from statecell_sim.toolchain import cache_key, cached, environment, prepare_fst, run_tool, verilator_root

TOP = "statecell"
HARNESS = Path(__file__).parent / "harness.cpp"
BOARD_HARNESS = Path(__file__).parent / "board.cpp"
SHARED = Path(__file__).parent / "model.h"
LIBRARY = "libstatecell.so"

# Undefined values are zero (--x-*), assertions are left to the benches, and one call runs many cycles inside C.
# Symbols stay inside the library: several simulators may be loaded into one process.
COMPILE = "-fPIC -fvisibility=hidden -fno-gnu-unique"
FLAGS = (
    "--cc --exe --build -O3 --x-assign fast --x-initial fast --noassert -Wno-WIDTH -Wno-fatal -Wno-lint "
    f"-j 0 --Mdir obj -o {LIBRARY} --prefix Vstatecell --top-module {TOP}"
).split()


def build_library(
    verilog: str, link_bytes: int, *, trace: bool = False, optimise: str = "-O3", progress: bool = True
) -> Path:
    """The shared library of a design, compiled unless the cache has it.

    `verilog` holds the module `statecell` with ports clk, rst and the streams i and o, whose payload is `link_bytes`
    data bytes (1 to 64) in the low bits and the flag `last` above them. With `trace` the library can write FST
    waveforms; it is slower and is cached beside the other. `optimise` is the compiler's option for the code of a cycle.
    `progress` shows the build on the standard error.

    Raises ToolMissingError where a compiler is missing and SimulatorError where compiling fails.
    """
    if not 1 <= link_bytes <= 64:
        raise ValueError(f"link_bytes is {link_bytes}; it must be 1 to 64.")
    return _build(verilog, HARNESS, f"-DSTATECELL_LINK_BYTES={link_bytes}", trace, progress, optimise)


def build_board(verilog: str, *, pins: bool, progress: bool = True) -> Path:
    """The shared library of a board on a pseudo terminal, compiled unless the cache has it.

    `verilog` holds the module `statecell`, emitted with link `uart` (`pins`) or `bytes`. Raises as `build_library`.
    """
    return _build(verilog, BOARD_HARNESS, "" if pins else "-DSTATECELL_BYTES", False, progress)


def _build(
    verilog: str, harness: Path, define: str, trace: bool, progress: bool, optimise: str = "-O3"
) -> Path:
    flags = [*FLAGS, "-CFLAGS", f"{COMPILE} {define}".strip(), "-LDFLAGS", "-shared -pthread -Wl,-Bsymbolic"]
    key = cache_key("library", verilog, harness.read_text(), SHARED.read_text(), str(trace), optimise, *flags)

    def build(folder: Path) -> None:
        env = environment(optimise=optimise)
        objects = folder / "obj"
        objects.mkdir()
        # Short relative names: make does not survive a space in a path.
        (folder / "top.v").write_text(verilog)
        shutil.copyfile(harness, folder / "harness.cpp")
        shutil.copyfile(SHARED, folder / SHARED.name)
        extra = prepare_fst(objects) if trace else []
        command = [str(verilator_root() / "bin" / "verilator"), *flags, *extra, "top.v", "harness.cpp"]
        run_tool(command, folder, env)
        (objects / LIBRARY).rename(folder / LIBRARY)
        shutil.rmtree(objects)

    title = "Building the simulator with waveforms" if trace else "Building the simulator"
    return cached(key, title, build, progress=progress) / LIBRARY
