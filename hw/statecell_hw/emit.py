"""Verilog of a configuration, its parameters as JSON, and the command `statecell verilog`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer
from amaranth.back import verilog as backend

import statecell.spec
import statecell_hw
from statecell.spec import formats
from statecell.spec.fingerprint import fingerprint
from statecell.spec.geometry import CONFIGS, Geometry, config
from statecell_hw.top import StateCell

TOP = "statecell"
"""Name of the Verilog module and of its file."""
HASH_BYTES = 8
DERIVED = (
    "groups", "pages", "slot_rows", "tile_slots", "word", "vector_words", "row_bits", "row_bytes", "bits_per_element",
)  # fmt: skip
"""Derived sizes that `parameters` lists."""

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


def emit_verilog(configuration: str | Geometry) -> str:
    """Verilog of the module `statecell`: ports clk, rst and the streams i and o. The same sources give the same bytes.

    Raises GeometryError for a configuration name that is not known.
    """
    g = _geometry(configuration)
    # Source attributes would carry the paths of this machine.
    text = backend.convert(StateCell(g, build_hash=build_hash(g)), name=TOP, emit_src=False, strip_internal_attrs=True)
    return str(text)


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
    files = {f"{TOP}.v": emit_verilog(name), "parameters.json": json.dumps(parameters(name), indent=2) + "\n"}
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    written = [str(folder / file) for file in files]
    typer.echo(json.dumps({"files": written, **parameters(name)}, indent=2) if as_json else "\n".join(written))


def _geometry(configuration: str | Geometry) -> Geometry:
    return config(configuration) if isinstance(configuration, str) else configuration
