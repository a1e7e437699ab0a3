from __future__ import annotations

from pathlib import Path

import pytest

from statecell.store.paths import libraries_folder
from statecell_boards.asic import library
from statecell_boards.asic.library import Library, fetch_library
from tests.store.packages import ar, tar


def test_a_library_names_itself() -> None:
    assert Library(text='/* x */\nlibrary ("fast_cells") {').name == "fast_cells"
    with pytest.raises(ValueError, match="names no library"):
        _ = Library(text="cells").name


def test_it_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path))
    fetched: list[str] = []

    def package(name: str, version: str, deb: str, size: int, sha256: str, folder: Path, *, instead: str) -> Path:
        fetched.append(name)
        (folder / deb).write_bytes(ar({"data.tar.xz": tar({library._LIBERTY: b"library(cells) {}"})}))
        return folder / deb

    monkeypatch.setattr(library, "apt_download", package)
    assert fetch_library().name == fetch_library().name == "cells"
    assert fetched == [library.PACKAGE]
    assert [path.name for path in (libraries_folder() / library.PACKAGE).iterdir()] == ["osu018_stdcells.lib"]
