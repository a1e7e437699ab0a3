from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statecell.cli import app
from tests.small_folder import make_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache."""
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a small random model."""
    return str(make_folder(tmp_path_factory.mktemp("model"), context=256))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line as a user does; returns exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["statecell", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            app.main()
        captured = capfd.readouterr()
        code = end.value.code
        return code if isinstance(code, int) else 0, captured.out, captured.err

    return call
