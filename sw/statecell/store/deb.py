"""Files inside a Debian package, read without installing it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence

from statecell.store.errors import CorruptDownloadError


def deb_files(package: bytes, paths: Sequence[str]) -> list[bytes]:
    """Contents of the files at `paths` (as `./usr/...`) inside the bytes of a package with xz-compressed data.

    Raises CorruptDownloadError if the bytes are not such a package or lack a file.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(_ar_member(package, "data.tar.xz"))) as archive:
            return [_member(archive, path) for path in paths]
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise CorruptDownloadError(
            f"The Debian package does not hold the files that it should ({error}): fetch it again."
        ) from error


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is not a file")
    return file.read()


def _ar_member(archive: bytes, name: str) -> bytes:
    """One member of a Unix `ar` archive: 8 magic bytes, then 60-byte headers, contents padded to even length."""
    at = 8
    if archive[:at] != b"!<arch>\n":
        raise KeyError("it is not an ar archive")
    while at + 60 <= len(archive):
        header = archive[at : at + 60]
        size = int(header[48:58])
        if header[:16].decode("ascii", "replace").strip().rstrip("/") == name:
            return archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise KeyError(f"it has no member {name}")
