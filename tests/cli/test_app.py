from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
import typer

from statecell.cli import app as application
from statecell.cli import doctor

Run = Callable[..., tuple[int, str, str]]
COMMANDS = ("generate", "chat", "drift", "info", "bench", "eval", "models", "texts", "doctor", "cache", "report")


def test_help_lists_every_command(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for command in COMMANDS:
        assert f" {command} " in out


@pytest.mark.parametrize(
    "command",
    [
        *("generate", "chat", "info", "bench attention", "bench link", "bench model", "eval ppl", "eval agreement"),
        *("report", "drift", "models list", "models fetch", "texts list", "texts fetch", "cache show", "cache clear"),
        "doctor",
    ],
)
def test_every_help_has_an_example(run: Run, command: str) -> None:
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert f"Example: statecell {command}" in out


def test_a_wrong_address_is_refused_before_torch_is_loaded() -> None:
    code = (
        "import sys; from statecell.cli import app; sys.argv = ['statecell', 'generate', 'a', '-d', 'tape:']\n"
        "try: app.main()\nexcept SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "2 False\n" and "'tape:' is not the address of a device" in done.stderr


def test_version(run: Run) -> None:
    assert run("--version")[:2] == (0, "statecell 0.1.0\n")


def test_an_error_is_one_sentence_without_a_traceback(run: Run) -> None:
    code, out, error = run("models", "fetch", "gpt-9")
    assert (code, out) == (2, "")
    assert error.startswith("statecell: There is no model 'gpt-9': use one of smollm2-135m, glassllm")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("generate a --bogus", "No such option: --bogus; see `statecell generate --help`."),
        ("generate", "Missing argument 'prompt'; see `statecell generate --help`."),
        ("generate --json", "Missing argument 'prompt'; see `statecell generate --help`."),
        ("generate a -m", "Option '-m' requires an argument; see `statecell"),
        ("generate a b", "Got unexpected extra argument(s) (b); see `statecell generate --help`."),
        ("eval ppl --window x", "Invalid value for '--window'"),
        ("generate a --cache int3", "'int3' is not one of 'fp16', 'int8', 'int4'; see `statecell generate --help`."),
        ("bench attention --rows 1,,2", "'1,,2' is not a list of whole numbers such as 64,256; see `statecell bench"),
        ("bench attention --rows 0", "'0' is not a list of whole numbers"),
        ("modles list", "No such command 'modles'. Did you mean 'models'?; see `statecell --help`."),
        ("generate a --cache int3", "Invalid value for '--cache' / '-c': 'int3' is not one of 'fp16', 'int8'"),
        ("info -d tape:", "'tape:' is not the address of a device: give one that begins with one of board:, model:"),
        ("generate a -d sim", "'sim' is not the address of a device: give one that begins with one of board:, model:"),
    ],
)
def test_a_usage_error_is_one_sentence(run: Run, arguments: str, sentence: str) -> None:
    code, out, error = run(*arguments.split())
    assert (code, out) == (2, "")
    assert error.startswith("statecell: ") and sentence in error and error.count("\n") == 1


def test_an_empty_address_names_the_schemes(run: Run) -> None:
    for command in (("info",), ("generate", "a"), ("eval", "ppl"), ("eval", "equality")):
        code, out, error = run(*command, "--device", "")
        assert (code, out) == (2, "") and "begins with one of board:, model:, serial:, sim:." in error


def test_a_group_without_a_command_prints_its_help(run: Run) -> None:
    code, out, error = run("models")
    assert (code, error) == (2, "") and "Usage: statecell models" in out


def test_a_wrong_configuration_is_one_sentence(run: Run) -> None:
    code, out, error = run("info", "--device", "model:huge")
    assert (code, out) == (2, "")
    assert "there is no configuration 'huge'" in error and error.count("\n") == 1


def test_plug_ins_are_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("plugged_command")
    module.app = typer.Typer()  # type: ignore[attr-defined]

    @module.app.command()  # type: ignore[untyped-decorator]
    def plugged(name: str) -> None:
        """Say hello."""
        typer.echo(f"hello {name}")

    monkeypatch.setitem(sys.modules, "plugged_command", module)
    point = EntryPoint(name="plugged", value="plugged_command:app", group=application.COMMANDS_GROUP)
    monkeypatch.setattr(application, "entry_points", lambda group: [point] if group == point.group else [])
    assert run("plugged", "world")[:2] == (0, "hello world\n")
    assert "plugged" in run("--help")[1]


def test_a_missing_package_is_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="plugged", value="no_such_package:app", group=application.COMMANDS_GROUP)
    monkeypatch.setattr(application, "entry_points", lambda group: [point])
    code, out, error = run("plugged")
    assert (code, out) == (2, "")
    assert "The Python package no_such_package is missing; run `make setup`" in error and error.count("\n") == 1


def test_lists_and_cache(run: Run, cache: Path) -> None:
    models = json.loads(run("models", "list", "--json")[1])
    fetched = {"smollm2-135m": False, "glassllm": False, "hybrid-tiny": True}
    assert {row["name"]: row["fetched"] for row in models} == fetched
    texts = json.loads(run("texts", "list", "--json")[1])
    assert len(texts) == 6 and "persuasion" in {row["name"] for row in texts}
    assert json.loads(run("cache", "show", "--json")[1]) == {"folder": str(cache), "parts": {}}
    for part in ("models", "simulator"):
        (cache / part).mkdir(parents=True)
        (cache / part / "file").write_bytes(bytes(1000))
    assert json.loads(run("cache", "show", "--json")[1])["parts"] == {"models": 1000, "simulator": 1000}
    assert run("cache", "clear", "everything")[0] == 2
    assert json.loads(run("cache", "clear", "simulator", "--json")[1])["removed"] == {"simulator": 1000}
    assert (cache / "models").is_dir() and not (cache / "simulator").exists()
    assert run("cache", "clear")[0] == 0
    assert not (cache / "models").exists()


def test_doctor_names_what_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checks = json.loads(run("doctor", "--json")[1])
    assert {check["name"] for check in checks["checks"]} >= {"g++", "make", "perl", "verilator", "torch", "disk"}
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, error = run("doctor", "--quiet")
    assert (code, out) == (1, "")
    assert "g++ is missing (compiles the simulator); do: apt-get install g++" in error
    assert not json.loads(run("doctor", "--json")[1])["ok"]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_doctor_finds_a_file_where_the_cache_should_be(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path / place))
    code, _, error = run("doctor", "--quiet")
    assert code == 1 and error.count("\n") == 1
    assert f"cache is impossible, because {tmp_path / 'file'} is a file; do: set STATECELL_CACHE" in error


def test_doctor_finds_that_the_cache_cannot_be_written(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != tmp_path)  # root may write everywhere
    code, _, error = run("doctor", "--quiet")
    assert code == 1 and f"cache is not writable in {tmp_path}; do: set STATECELL_CACHE" in error


def test_doctor_checks_the_disk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISK_BYTES", 1 << 60)
    code, _, error = run("doctor", "--quiet")
    assert code == 1 and "disk is" in error and "STATECELL_CACHE" in error
