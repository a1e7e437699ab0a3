"""What every command shares: consoles, JSON, tables and the common options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from statecell.link.address import check_address


def known_device(url: str | None) -> str | None:
    """The address of a device, refused before anything large is loaded; None stays None."""
    if url is not None:
        check_address(url)
    return url


class CacheFormat(StrEnum):
    """How keys and values are stored."""

    FP16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="Name of a model, or path of a Hugging Face folder or a .gguf file.")
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        callback=known_device,
        help="sim: or sim:CONFIG for the simulated device, serial:///dev/ttyUSB0 for a board, board:CONFIG for a "
        "simulated board with its serial link, model: for the bit-exact integer model in PyTorch.",
    ),
]
CacheOption = Annotated[
    CacheFormat,
    typer.Option(
        "--cache",
        "-c",
        help="int4: 4-bit rows, the first token in 8 bits; int8: every row in 8 bits; fp16: float attention on the "
        "host, no device.",
    ),
]

RecalibrateOption = Annotated[
    int | None,
    typer.Option("--recalibrate", min=1, help="New scales for every row of the recurrent states after so many tokens."),
]


def out() -> Console:
    """The console of results (stdout)."""
    return Console(highlight=False)


def err() -> Console:
    """The console of progress and messages (stderr)."""
    return Console(stderr=True, highlight=False)


def complain(sentence: str) -> None:
    """Print an error on stderr."""
    err().print(f"statecell: {sentence}", style="red", markup=False, soft_wrap=True)


def numbers(text: str, option: str) -> list[int]:
    """Whole numbers from 1 on, separated by commas. Raises a usage error that names the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers such as 64,256", param_hint=option)
    return [int(part) for part in parts]


def print_json(value: Any) -> None:
    """Print one JSON document on stdout, in ASCII: it survives every encoding of the output."""
    typer.echo(json.dumps(value, indent=2))


def print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows that share their keys as a table."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in rows[0] if rows else ():
        numeric = all(isinstance(row[name], int | float) and not isinstance(row[name], bool) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    out().print(table)


def print_facts(title: str, facts: Iterable[tuple[str, Any]]) -> None:
    """Print (name, value) pairs as a table of two columns."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, cell(value))
    out().print(table)


def cell(value: Any) -> str:
    """A value as people read it: thousands apart, four significant digits, yes and no."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def megabytes(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 1e6:,.1f} MB"


class Training:
    """Progress bars on stderr for the parts of a training, with the loss and an estimate of the time left."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                   TextColumn("{task.fields[loss]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        console = err()
        self._progress = Progress(*columns, console=console, disable=not console.is_interactive)

    def __enter__(self) -> Training:
        """The bars themselves; the block's end leaves them as they are, also after an error."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing."""
        self._progress.stop()

    def part(self, title: str) -> Callable[[int, int, float], None]:
        """A callback with (steps done, steps in all, bits per byte), whose bar appears at its first call."""
        task: list[TaskID] = []

        def step(done: int, total: int, loss: float) -> None:
            if not task:  # resumed steps are no part of the estimate
                task.append(self._progress.add_task(title, total=total, completed=done - 1, loss=""))
            self._progress.update(task[0], completed=done, loss=f"{loss:.3f} bits per byte")

        return step

    def plain(self, title: str) -> Callable[[int, int], None]:
        """A callback with (done, total)."""
        task: list[TaskID] = []

        def step(done: int, total: int) -> None:
            if not task:
                task.append(self._progress.add_task(title, total=total, loss=""))
            self._progress.update(task[0], completed=done)

        return step


class Counting:
    """A progress bar on stderr that shows itself at the first call with (done, total) and vanishes at the last.

    Where stderr is no terminal, nothing is shown: a bar that cannot move would only leave empty lines in a log.
    """

    def __init__(self, title: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = err()
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_interactive)
        self._task = self._progress.add_task(title, total=None)

    def __enter__(self) -> Counting:
        """The bar itself; the block's end removes it, also after an error."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` steps are done."""
        self._progress.start()
        self._progress.update(self._task, completed=done, total=total)
        if done >= total:
            self._progress.stop()
