"""`statecell models`: list and fetch language models."""

from __future__ import annotations

from typing import Annotated

import typer

from statecell.cli.output import JsonOption, megabytes, out, print_json, print_rows
from statecell.store import models as store
from statecell.store.paths import folder_bytes

app = typer.Typer(no_args_is_help=True, help="Language models in the user cache.")


@app.command("list")
def list_models(as_json: JsonOption = False) -> None:
    """List the models that have a name here, and whether they are fetched.

    Example: statecell models list
    """
    rows = [
        {
            "name": source.name,
            "fetched": store.is_fetched(source.name),
            "package": source.requirement,
            "download": megabytes(source.wheel_bytes),
            "licence": source.licence,
            "description": source.description,
        }
        for source in store.MODELS.values()
    ] + [
        {
            "name": shipped.name,
            "fetched": store.is_fetched(shipped.name),
            "package": "statecell",
            "download": megabytes(0),
            "licence": shipped.licence,
            "description": shipped.description,
        }
        for shipped in store.SHIPPED.values()
    ]
    print_json(rows) if as_json else print_rows("models", rows)


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="A name from `statecell models list`.")], as_json: JsonOption = False
) -> None:
    """Download a model, check it, and convert it once. Does nothing if that is done already.

    Example: statecell models fetch smollm2-135m
    """
    folder = store.fetch_model(name)
    if as_json:
        print_json({"name": name, "folder": str(folder), "bytes": folder_bytes(folder)})
    else:
        out().print(f"{name}: {folder} ({megabytes(folder_bytes(folder))})", soft_wrap=True)
