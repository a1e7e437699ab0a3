"""The command line's entry point, its list of commands, and how errors end it."""

from __future__ import annotations

import io
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

import statecell
from statecell.cli import bench, cache, calibrate, doctor, drift, evaluate, generate, info, models, report, texts, train
from statecell.cli.output import complain
from statecell.errors import StatecellError
from statecell.spec.geometry import GeometryError

COMMANDS_GROUP = "statecell.commands"


class PluggedGroup(TyperGroup):
    """The commands of this package, and those that other packages offer under the entry-point group.

    A plug-in (a Typer application) is imported when it is called or when the help lists it, not before: most commands
    must not wait for a hardware library.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, in alphabetic order."""
        return sorted({*super().list_commands(ctx), *_plugins()})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, or None."""
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _plugins():
            command = get_command(_plugins()[cmd_name].load())
            command.name = cmd_name
        return command


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMANDS_GROUP)}


app = typer.Typer(
    cls=PluggedGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="LLM attention computed where the KV cache lives: an array of 4-bit cells, simulated or on a board.",
)
app.add_typer(models.app, name="models")
app.add_typer(texts.app, name="texts")
app.add_typer(cache.app, name="cache")
app.add_typer(bench.app, name="bench")
app.add_typer(evaluate.app, name="eval")
app.command("calibrate")(calibrate.calibrate)
app.command("doctor")(doctor.doctor)
app.command("drift")(drift.drift)
app.command("info")(info.info)
app.command("generate")(generate.generate)
app.command("chat")(generate.chat)
app.command("report")(report.report)
app.command("train")(train.train)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"statecell {statecell.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that stand before the command."""


def main() -> None:
    """Run the command line. An error that the user can repair ends it with one sentence on stderr and its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where it was closed
            stream.reconfigure(errors="replace")  # a character that the terminal cannot show must not end the program
    try:
        sys.exit(app(standalone_mode=False))  # otherwise typer draws a box around a wrong option
    except typer.TyperException as error:
        _refuse(_usage(error), error.exit_code)
    except (StatecellError, GeometryError) as error:
        _refuse(str(error), getattr(error, "exit_code", StatecellError.exit_code))
    except ModuleNotFoundError as error:
        _refuse(f"The Python package {error.name} is missing; run `make setup`, or install statecell with pip again.")
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _refuse(f"A file or folder cannot be used{where}: {error.strerror or error}; give another one.")
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)


def _usage(error: typer.TyperException) -> str:
    """The sentence for a wrong option or argument; nothing where the help has been printed instead."""
    message = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")  # pydantic's word
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "statecell"
    return message and f"{message}; see `{command} --help`."


def _refuse(sentence: str, exit_code: int = StatecellError.exit_code) -> NoReturn:
    if sentence:
        complain(sentence)
    sys.exit(exit_code)
