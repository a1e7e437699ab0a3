"""The standard-cell library, fetched as a Debian package and read without installing it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from statecell.store.deb import deb_files
from statecell.store.download import apt_download
from statecell.store.paths import libraries_folder, whole_folder

TITLE = "OSU 0.18 um"
PACKAGE = "qflow-tech-osu018"
VERSION = "1.3.17+dfsg.1-3"
_DEB_BYTES = 62_296
_DEB_SHA256 = "64fae4bebbbd6a849c8c87c8e86d5fe137df44a1ea7715dcd59d11c720019428"
_LIBERTY = "./usr/share/qflow/tech/osu018/osu018_stdcells.lib"
BUFFER = "BUFX2"
"""The cell that is taken to drive what enters a block."""
INSTEAD = "run it on Debian 12, in a container for example"


@dataclass(frozen=True, kw_only=True)
class Library:
    """A cell library: the ``text`` of its Liberty file (areas in square micrometres, times in ns, loads in pF)."""

    text: str

    @property
    def name(self) -> str:
        """The name that the file gives itself. Raises ValueError if it gives none."""
        found = re.search(r'library\s*\(\s*"?(\w+)', self.text)
        if found is None:
            raise ValueError("the file is not a Liberty file: it names no library")
        return found[1]


def fetch_library() -> Library:
    """The library, downloaded into the user cache first if it is missing. Raises StoreError and DownloadError."""
    path = libraries_folder() / PACKAGE / Path(_LIBERTY).name
    if not path.is_file():
        with whole_folder(path.parent) as folder:
            deb = f"{PACKAGE}_{VERSION}_all.deb"
            package = apt_download(PACKAGE, VERSION, deb, _DEB_BYTES, _DEB_SHA256, folder, instead=INSTEAD)
            (folder / path.name).write_bytes(deb_files(package.read_bytes(), [_LIBERTY])[0])
            package.unlink()
    return Library(text=path.read_text(encoding="utf-8"))
