from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from statecell.store import download
from statecell.store.errors import CorruptDownloadError, DownloadError


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_right_file_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    assert download.checked(path, hashlib.sha256(b"content").hexdigest()) == path


def test_a_corrupt_file_is_refused_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"other")
    with pytest.raises(CorruptDownloadError, match="file is corrupt .*fetch it again"):
        download.checked(path, hashlib.sha256(b"content").hexdigest())
    assert not path.exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="did not bring the file"):
        download.checked(tmp_path / "file", "0" * 64)


def test_a_failing_client_is_reported_with_its_own_reason(tmp_path: Path) -> None:
    code = "import sys; print('ERROR: no such version', file=sys.stderr); sys.exit(1)"
    with pytest.raises(DownloadError, match=r"The download of thing failed \(no such version\)"):
        download._run(_python(code), "thing", 10, tmp_path)


def test_a_slow_client_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "DOWNLOAD_TIMEOUT_S", 0.5)
    with pytest.raises(DownloadError, match="was stopped"):
        download._run(_python("import time; time.sleep(60)"), "thing", None, tmp_path)


def test_a_client_runs_in_the_folder(tmp_path: Path) -> None:
    download._run(_python("open('file', 'w').write('x')"), "thing", 1, tmp_path)
    assert (tmp_path / "file").read_text() == "x"


def test_no_apt_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DownloadError, match="package p 1, and this system has no apt-get: do without."):
        download.apt_download("p", "1", "p_1.deb", 1, "0" * 64, tmp_path, instead="do without")
