"""Download one package file through the system's ordinary clients, with a progress bar, and check it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from statecell.store.errors import CorruptDownloadError, DownloadError
from statecell.store.paths import folder_bytes

DOWNLOAD_TIMEOUT_S = 1800.0
_POLL_S = 0.2


def pip_download(requirement: str, filename: str, size: int, sha256: str, folder: Path) -> Path:
    """Put the wheel `filename` of the exact requirement (`name==version`) into `folder` and return its path.

    The package is not installed and its dependencies are not fetched. `size` (bytes) scales the progress bar.
    Raises DownloadError if pip fails or takes more than DOWNLOAD_TIMEOUT_S, CorruptDownloadError on a wrong SHA-256.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--quiet"]
    command += ["--only-binary", ":all:", "--dest", str(folder), requirement]
    _run(command, f"package {requirement}", size, folder)
    return checked(folder / filename, sha256)


def apt_download(
    package: str, version: str, filename: str, size: int, sha256: str, folder: Path, *, instead: str
) -> Path:
    """Put Debian's `package` at `version` into `folder` as `filename` and return its path.

    Where the system has no package lists yet, lists are fetched into a folder of our own first: neither root nor a
    change of the system is needed. Raises as `pip_download`, and DownloadError, which says what to do `instead`, where
    there is no apt-get.
    """
    if shutil.which("apt-get") is None:
        raise DownloadError(
            f"This needs the Debian package {package} {version}, and this system has no apt-get: {instead}."
        )
    wanted = f"{package}={version}"
    subject = f"Debian package {wanted}"
    # As root, apt drops to a user who may not write into our folder and warns about it.
    apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=root"]
    try:
        _run([*apt, "download", wanted], subject, size, folder)
    except DownloadError:
        with tempfile.TemporaryDirectory(prefix="statecell-apt-") as state:
            (Path(state) / "lists" / "partial").mkdir(parents=True)
            (Path(state) / "archives" / "partial").mkdir(parents=True)
            apt += ["-o", f"Dir::State::lists={state}/lists", "-o", f"Dir::Cache={state}"]
            _run([*apt, "update"], "Debian's package lists", None, folder)
            _run([*apt, "download", wanted], subject, size, folder)
    return checked(folder / filename, sha256)


def checked(path: Path, sha256: str) -> Path:
    """`path`, if its SHA-256 is the expected one; else the file is removed and CorruptDownloadError raised."""
    if not path.is_file():
        raise DownloadError(f"The download did not bring the file {path.name}: check the package index in use.")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        path.unlink()
        raise CorruptDownloadError(
            f"The download {path.name} is corrupt (SHA-256 {found[:16]}..., expected {sha256[:16]}...) and was "
            "removed: fetch it again."
        )
    return path


@contextmanager
def status(message: str) -> Iterator[None]:
    """Show `message` with a spinner on stderr while the block runs."""
    with Console(stderr=True).status(message):
        yield


def _run(command: Sequence[str], subject: str, size: int | None, folder: Path) -> None:
    """Run a download command in `folder`, drawing a bar from the bytes that have arrived on disk."""
    # pip writes into TMPDIR before it moves the whole file: a TMPDIR of our own shows how far it is.
    with tempfile.TemporaryDirectory(prefix="statecell-download-") as scratch, _progress() as progress:
        task = progress.add_task(subject, total=size)
        log = Path(scratch) / "log"
        environment: Mapping[str, str] = {**os.environ, "TMPDIR": scratch}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            deadline = time.monotonic() + DOWNLOAD_TIMEOUT_S
            try:
                while process.poll() is None:
                    if time.monotonic() > deadline:
                        raise DownloadError(
                            f"The download of {subject} took more than {DOWNLOAD_TIMEOUT_S / 60:.0f} minutes and was "
                            "stopped: check the network and try again."
                        )
                    arrived = folder_bytes(Path(scratch)) + folder_bytes(folder)
                    progress.update(task, completed=min(arrived, size or arrived))
                    time.sleep(_POLL_S)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if process.returncode != 0:
            raise DownloadError(
                f"The download of {subject} failed ({_reason(log.read_text(errors='replace'))}): check the network "
                "and the package index, then try again."
            )
        progress.update(task, completed=size)


def _reason(log: str) -> str:
    """The last line of a client's output that names an error, without its prefix."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "E:", "/"))] or lines or ["no output"]
    return errors[-1].removeprefix("ERROR:").removeprefix("E:").strip().rstrip(".")


def _progress() -> Progress:
    return Progress(
        TextColumn("fetching {task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=False,
    )
