from __future__ import annotations

from pathlib import Path

import pytest

from statecell.store import texts
from statecell.store.errors import CorruptDownloadError, StoreError, UnknownNameError
from statecell.store.paths import texts_folder
from statecell.store.rdata import RDataError
from tests.store.packages import ar, tar


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path))
    return tmp_path


def test_the_novels_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = texts._DATA_FOLDER
    data = tar({folder + "Rdata.rdx": b"index", folder + "Rdata.rdb": b"data"})
    monkeypatch.setattr(
        texts, "read_lazy_data", lambda index, data: {name: [index.decode(), data.decode()] for name in texts.TEXTS}
    )
    assert texts.novels(ar({"data.tar.xz": data})) == dict.fromkeys(texts.TEXTS, "index\ndata\n")


def test_data_that_cannot_be_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: bytes) -> dict[str, list[str]]:
        raise RDataError("no list")

    monkeypatch.setattr(texts, "read_lazy_data", unreadable)
    data = tar({texts._DATA_FOLDER + name: b"nothing" for name in ("Rdata.rdx", "Rdata.rdb")})
    with pytest.raises(CorruptDownloadError, match="fetch it again"):
        texts.novels(ar({"data.tar.xz": data}))


def test_unknown_names_are_refused_with_the_known_ones(cache: Path) -> None:
    with pytest.raises(UnknownNameError, match="no text 'ulysses'.*emma.*persuasion"):
        texts.load_text("ulysses")


def test_a_users_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("é—", encoding="utf-8")
    assert texts.load_text(str(path)) == "é—"
    path.write_bytes(b"abc\xff")
    with pytest.raises(StoreError, match="not UTF-8 text \\(byte 3\\)"):
        texts.load_text(str(path))


def test_a_fetched_text_is_not_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Path:
        raise AssertionError("downloaded twice")

    monkeypatch.setattr(texts, "apt_download", refuse)
    path = texts.text_path("emma")
    path.parent.mkdir(parents=True)
    path.write_text("She was handsome.\n")
    assert texts.load_text("emma") == "She was handsome.\n"
    assert texts.is_fetched("emma") and not texts.is_fetched("persuasion")


def test_a_failed_fetch_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **_: object) -> Path:
        path = Path(str(args[-1])) / "package.deb"
        path.write_bytes(b"not an archive")
        return path

    monkeypatch.setattr(texts, "apt_download", broken)
    with pytest.raises(CorruptDownloadError):
        texts.fetch_text("emma")
    assert not texts.is_fetched("emma")
    assert list(texts_folder().iterdir()) == []


@pytest.mark.model
def test_persuasion_as_fetched() -> None:
    if not texts.is_fetched("persuasion"):
        pytest.skip("statecell texts fetch persuasion")
    text = texts.load_text("persuasion")
    assert len(text.encode()) == 466_854
    assert text.startswith("Persuasion\n") and "Sir Walter Elliot, of Kellynch Hall" in text
