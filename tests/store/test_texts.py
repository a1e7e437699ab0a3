from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from statecell.store import texts
from statecell.store.errors import CorruptDownloadError, StoreError, UnknownNameError
from statecell.store.paths import texts_folder


def _ar(members: dict[str, bytes]) -> bytes:
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return out


def _tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path))
    return tmp_path


def test_odd_members_do_not_shift_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = texts._DATA_FOLDER
    data = _tar({folder + "Rdata.rdx": b"index", folder + "Rdata.rdb": b"data"})
    monkeypatch.setattr(
        texts, "read_lazy_data", lambda index, data: {name: [index.decode(), data.decode()] for name in texts.TEXTS}
    )
    package = _ar({"debian-binary": b"2.0", "data.tar.xz": data})
    assert texts.novels(package) == dict.fromkeys(texts.TEXTS, "index\ndata\n")


@pytest.mark.parametrize(
    "package",
    [
        b"not an archive",
        _ar({"debian-binary": b"2.0\n"}),
        _ar({"data.tar.xz": b"not tar"}),
        _ar({"data.tar.xz": _tar({})}),
    ],
)
def test_a_package_that_is_none_is_refused(package: bytes) -> None:
    with pytest.raises(CorruptDownloadError, match="fetch it again"):
        texts.novels(package)


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
    def refuse(*_: object) -> Path:
        raise AssertionError("downloaded twice")

    monkeypatch.setattr(texts, "apt_download", refuse)
    path = texts.text_path("emma")
    path.parent.mkdir(parents=True)
    path.write_text("She was handsome.\n")
    assert texts.load_text("emma") == "She was handsome.\n"
    assert texts.is_fetched("emma") and not texts.is_fetched("persuasion")


def test_a_failed_fetch_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> Path:
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
