"""Texts for evaluation and calibration: six public-domain novels from a Debian package, or a file of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from statecell.store.deb import deb_files
from statecell.store.download import apt_download
from statecell.store.errors import CorruptDownloadError, StoreError, UnknownNameError
from statecell.store.paths import texts_folder, whole_folder
from statecell.store.rdata import RDataError, read_lazy_data


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """One text: its name here, and what it is."""

    name: str
    title: str


TEXTS: dict[str, TextSource] = {
    source.name: source
    for source in (
        TextSource(name="emma", title="Emma, Jane Austen, 1815 (calibration)"),
        TextSource(name="mansfieldpark", title="Mansfield Park, Jane Austen, 1814"),
        TextSource(name="northangerabbey", title="Northanger Abbey, Jane Austen, 1817"),
        TextSource(name="persuasion", title="Persuasion, Jane Austen, 1817 (held out for evaluation)"),
        TextSource(name="prideprejudice", title="Pride and Prejudice, Jane Austen, 1813"),
        TextSource(name="sensesensibility", title="Sense and Sensibility, Jane Austen, 1811"),
    )
}
PACKAGE = "r-cran-janeaustenr"
VERSION = "1.0.0-1"
_DEB = f"{PACKAGE}_{VERSION}_all.deb"
_DEB_BYTES = 1_626_392
_DEB_SHA256 = "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95"
_DATA_FOLDER = "./usr/lib/R/site-library/janeaustenr/data/"


def text_path(name: str) -> Path:
    """Where the registered text `name` lies once fetched. Raises UnknownNameError."""
    if name not in TEXTS:
        raise UnknownNameError(
            f"There is no text '{name}': use one of {', '.join(TEXTS)}, or the path of a UTF-8 text file."
        )
    return texts_folder() / PACKAGE / f"{name}.txt"


def is_fetched(name: str) -> bool:
    """Whether the registered text `name` is in the cache."""
    return text_path(name).is_file()


def fetch_text(name: str) -> Path:
    """The path of the registered text `name`, downloaded first if it is missing (all six come in one package)."""
    path = text_path(name)
    if not path.is_file():
        with whole_folder(path.parent) as folder:
            package = apt_download(
                PACKAGE, VERSION, _DEB, _DEB_BYTES, _DEB_SHA256, folder, instead="give the path of a text file"
            )
            for title, text in novels(package.read_bytes()).items():
                (folder / f"{title}.txt").write_text(text, encoding="utf-8", newline="\n")
            package.unlink()
    return path


def load_text(name_or_path: str) -> str:
    """The text of a registered name (fetched if needed) or of a UTF-8 file.

    Raises UnknownNameError for a name that is neither, StoreError for a file that is not UTF-8.
    """
    path = Path(name_or_path)
    if name_or_path in TEXTS:
        path = fetch_text(name_or_path)
    elif not path.is_file():
        text_path(name_or_path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise StoreError(
            f"The file {path} is not UTF-8 text (byte {error.start}): convert it to UTF-8 first."
        ) from error


def novels(package: bytes) -> dict[str, str]:
    """The texts inside the Debian package: name -> text, every line ended by one newline.

    Raises CorruptDownloadError if the bytes are not such a package.
    """
    index, data = deb_files(package, [_DATA_FOLDER + file for file in ("Rdata.rdx", "Rdata.rdb")])
    try:
        lines = read_lazy_data(index, data)
    except RDataError as error:
        raise CorruptDownloadError(
            f"The file {_DEB} does not hold the texts that it should ({error}): fetch it again."
        ) from error
    return {name: "".join(line + "\n" for line in lines[name]) for name in TEXTS}
