"""`statecell texts`: list and fetch texts for calibration and evaluation."""

from __future__ import annotations

from typing import Annotated

import typer

from statecell.cli.output import JsonOption, megabytes, out, print_json, print_rows
from statecell.store import texts as store

app = typer.Typer(no_args_is_help=True, help="Texts in the user cache.")


@app.command("list")
def list_texts(as_json: JsonOption = False) -> None:
    """List the texts that have a name here, and whether they are fetched.

    Example: statecell texts list
    """
    rows = [
        {"name": source.name, "fetched": store.is_fetched(source.name), "title": source.title}
        for source in store.TEXTS.values()
    ]
    print_json(rows) if as_json else print_rows("texts", rows)


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="A name from `statecell texts list`.")], as_json: JsonOption = False
) -> None:
    """Download a text and check it. All six novels come in one package.

    Example: statecell texts fetch persuasion
    """
    path = store.fetch_text(name)
    size = path.stat().st_size
    if as_json:
        print_json({"name": name, "path": str(path), "bytes": size})
    else:
        out().print(f"{name}: {path} ({megabytes(size)})", soft_wrap=True)
