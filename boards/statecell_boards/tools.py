"""Runs the programs that make bitstreams: they come from Python packages, so they stand beside the interpreter."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from statecell_boards.errors import BoardError

LIMIT_S = 4 * 3600
"""Longest run of one tool; a large ECP5 design takes minutes to an hour."""


def tool(program: str) -> str:
    """Path of a program. Raises BoardError if it is not installed."""
    beside = Path(sys.executable).parent
    found = shutil.which(program, path=os.pathsep.join([str(beside), os.environ.get("PATH", "")]))
    if found is None:
        raise BoardError(f"The program {program} is not installed: run `make setup`, which installs all build tools.")
    return found


def run(title: str, command: Sequence[str], folder: Path, log: str) -> None:
    """Runs a step to its end in ``folder``, its output in the file ``log`` there.

    The tools are WebAssembly and see only paths below the folder, so file names in the command are relative to it.
    Raises BoardError with the step's first error lines if it fails, does not end, or cannot be started.
    """
    with shown(title), (folder / log).open("wb") as output:
        process = subprocess.Popen(
            [tool(command[0]), *command[1:]], cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env={**os.environ, "PYTHONHASHSEED": "0"}, start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise BoardError(f"{title}: no end after {LIMIT_S} s; see {folder / log}.") from None
            raise
    if code:
        lines = (folder / log).read_text(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise BoardError(f"{title} failed (status {code}, log {folder / log}): {' | '.join(errors[:3])}")


@contextmanager
def shown(title: str) -> Iterator[Callable[[str], None]]:
    """Shows on the standard error that a step runs, its time, and its end; and how it stands, as the step tells it."""
    console = Console(stderr=True, highlight=False)
    start = time.monotonic()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    stands = ""
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        if not console.is_terminal:
            console.print(f"{title} ...", soft_wrap=True)
        task = bar.add_task(title, total=None)

        def tell(line: str) -> None:
            nonlocal stands
            stands = f"; {line}"
            bar.update(task, description=f"{title}; {line}")

        yield tell
    console.print(f"{title}: {time.monotonic() - start:.0f} s{stands}", soft_wrap=True)
