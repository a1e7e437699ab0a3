"""`statecell board`: a simulated board on a pseudo terminal, for any program that opens a serial port."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from statecell.spec.geometry import CONFIGS
from statecell_sim.board import Faults, Wire, board_geometry, board_of
from statecell_sim.errors import SimulatorError

app = typer.Typer(help="A simulated board on a pseudo terminal.")


@app.command()
def board(
    config: Annotated[str, typer.Option("--config", "-c", help=f"Configuration: {', '.join(CONFIGS)}.")],
    pty: Annotated[Path, typer.Option("--pty", "-p", help="Name to make for the board's serial port.")],
    transport: Annotated[
        Wire, typer.Option("--transport", help="uart: bit by bit through the pins; bytes: without the UART, for speed.")
    ] = "uart",
    faults: Annotated[
        float,
        typer.Option("--faults", help="Probability, for each byte, of a flipped bit, a loss, a repeat or an extra."),
    ] = 0.0,
    outage: Annotated[
        float, typer.Option("--outage", help="Probability, for each byte, that the cable goes out for 300 bytes.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the faults.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")] = False,
) -> None:
    """Run a board until Ctrl-C or SIGTERM; programs may come and go meanwhile, its state stays.

    Example: statecell board --config glassllm --pty ./statecell0
    and in another terminal: statecell generate "Once" --model glassllm --device serial://./statecell0
    """
    disturbed = Faults(rate=faults, outage=outage, seed=seed)
    clock_hz = board_geometry(config).clock_hz
    running = board_of(config, transport, disturbed)
    with _stopped_by_signals() as stop, _named(pty, running.path):
        facts: dict[str, Any] = {"config": config, "transport": transport, "clock_hz": clock_hz, "port": str(pty)}
        if as_json:
            typer.echo(json.dumps(facts))
        else:
            Console(highlight=False).print(
                f"board {config} on {pty}, clock {clock_hz / 1e6:g} MHz, {transport}: open serial://{pty}; "
                "Ctrl-C ends it", soft_wrap=True, markup=False,
            )
        try:
            running.run(stop)
        finally:
            counts = {**running.counts, "cycles": running.cycles}
            running.close()
    if as_json:
        typer.echo(json.dumps(counts))


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; the handlers before it come back at the end."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _named(name: Path, target: str) -> Iterator[None]:
    """A link called `name` while the board runs. A link that a killed board left behind is replaced, nothing else is.

    Raises SimulatorError if the name is taken or cannot be made.
    """
    if name.is_symlink() and not name.exists():
        name.unlink()
    try:
        name.symlink_to(target)
    except FileExistsError:
        raise SimulatorError(f"{name} exists; give another --pty name, or remove it.") from None
    except OSError as error:
        raise SimulatorError(f"{name} cannot be made ({error.strerror}); give another --pty name.") from error
    try:
        yield
    finally:
        if name.is_symlink() and str(name.readlink()) == target:
            name.unlink()
