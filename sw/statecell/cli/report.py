"""`statecell report`: the plots of the documentation, from measurements that are kept beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from statecell.cli.output import Counting, DeviceOption, JsonOption, ModelOption, err, out, print_json
from statecell.store.errors import StoreError

FORMATS = ("fp16", "int8", "naive-int4", "int4")


def report(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder of the measurements and the plots.")] = Path(
        "docs/figures"
    ),
    measure: Annotated[bool, typer.Option("--measure", help="Measure again, even where results are there.")] = False,
    model: ModelOption = "smollm2-135m",
    device: DeviceOption = "sim:smollm2",
    as_json: JsonOption = False,
) -> None:
    """Draw perplexity against bits per element, and cycles against rows, as PNG and SVG.

    Measurements lie in the folder as perplexity.json and attention.json, and are made where they are missing (minutes).
    Rows in perplexity-elsewhere.json are drawn too.

    Example: statecell report -o docs/figures
    """
    folder.mkdir(parents=True, exist_ok=True)
    quality, cycles = folder / "perplexity.json", folder / "attention.json"
    if measure or not quality.is_file():
        _store(quality, _measure_quality(model))
    if measure or not cycles.is_file():
        _store(cycles, _measure_cycles(device))
    from statecell.bench import plots

    elsewhere = folder / "perplexity-elsewhere.json"
    rows = _load(quality) + (_load(elsewhere) if elsewhere.is_file() else [])
    files = [*plots.perplexity(rows, folder / "perplexity"), *plots.cycles(_load(cycles), folder / "attention")]
    if as_json:
        print_json({"files": [str(file) for file in files]})
    else:
        for file in files:
            out().print(str(file), soft_wrap=True)


def _measure_quality(model: str) -> list[dict[str, Any]]:
    from statecell.evaluate.perplexity import perplexity

    err().print(f"measuring the perplexity of {', '.join(FORMATS)}")
    with Counting("evaluating, windows") as step:
        return [row.as_dict() for row in perplexity(model, "persuasion", cache_formats=FORMATS, progress=step)]


def _measure_cycles(device: str) -> list[dict[str, Any]]:
    from statecell.bench.attention import bench_attention

    err().print(f"measuring cycles on {device}")
    rows = (16, 64, 128, 256, 512, 1024, 2048)
    with Counting("bench") as step:
        return [row.as_dict() for row in bench_attention(device, rows=rows, queries=(1, 3), progress=step)]


def _store(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _load(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(
            f"The measurements in {path} are not JSON ({error}): remove the file to measure again."
        ) from error
    return rows
