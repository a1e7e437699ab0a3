"""`statecell cache`: what the user cache holds, and clearing it."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from statecell.cli.output import JsonOption, megabytes, out, print_json, print_rows
from statecell.store.errors import StoreError
from statecell.store.paths import CACHE_VARIABLE, cache_root, folder_bytes

app = typer.Typer(no_args_is_help=True, help="The user cache: models, texts, cell libraries, calibrations, simulators.")
PARTS = ("models", "texts", "libraries", "calibrations", "simulator")


def _parts() -> list[tuple[str, int]]:
    return [(part, folder_bytes(cache_root() / part)) for part in PARTS if (cache_root() / part).is_dir()]


@app.command("show")
def show(as_json: JsonOption = False) -> None:
    """Show where the cache is and what it holds.

    Example: statecell cache show
    """
    parts = _parts()
    if as_json:
        print_json({"folder": str(cache_root()), "parts": dict(parts)})
        return
    out().print(f"{cache_root()} (set {CACHE_VARIABLE} to move it)", soft_wrap=True)
    if parts:
        print_rows("cache", [{"part": part, "size": megabytes(size)} for part, size in parts])
    else:
        out().print("empty")


@app.command("clear")
def clear(
    part: Annotated[str | None, typer.Argument(help=f"Only this part: {', '.join(PARTS)}. Default: all.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Remove what was fetched, built and calibrated; all but your calibrations comes back when needed.

    Example: statecell cache clear simulator
    """
    if part is not None and part not in PARTS:
        raise StoreError(f"The cache has no part '{part}': use one of {', '.join(PARTS)}, or leave it out.")
    freed = {name: size for name, size in _parts() if part in (None, name)}
    for name in freed:
        shutil.rmtree(cache_root() / name)
    if as_json:
        print_json({"folder": str(cache_root()), "removed": freed})
    else:
        out().print(f"removed {megabytes(sum(freed.values()))} from {cache_root()}", soft_wrap=True)
