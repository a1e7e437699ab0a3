"""Where downloaded and built things lie, and how they get there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from statecell.store.errors import StoreError

CACHE_VARIABLE = "STATECELL_CACHE"


def cache_root() -> Path:
    """The cache folder: the environment variable STATECELL_CACHE, else the user's cache folder of the system.

    The folder need not exist yet.
    """
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override).expanduser().absolute() if override else platformdirs.user_cache_path("statecell")


def models_folder() -> Path:
    """Converted models, one folder each."""
    return cache_root() / "models"


def texts_folder() -> Path:
    """Texts for evaluation, one folder per package."""
    return cache_root() / "texts"


def libraries_folder() -> Path:
    """Standard-cell libraries and the programs that read them, one folder per package."""
    return cache_root() / "libraries"


def calibrations_folder() -> Path:
    """Calibrations that the user has made, one file per model fingerprint."""
    return cache_root() / "calibrations"


def folder_bytes(folder: Path) -> int:
    """Bytes of all files under `folder`; 0 where it does not exist."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` when the block ends, and vanishes when the block raises.

    `target` therefore holds everything or is not there: an interrupted download or conversion leaves nothing half. An
    older `target` is replaced. The yielded folder lies beside `target`, so that the last step is a rename.

    Raises StoreError if the cache folder cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise StoreError(
            f"The cache folder {target.parent} cannot be written ({error.strerror}): "
            f"set {CACHE_VARIABLE} to a folder that can."
        ) from error
    try:
        yield work
        if target.exists():
            shutil.rmtree(target)
        try:
            work.rename(target)
        except OSError:
            # Another process may have finished the same folder between the two steps above; its result is as good.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
