from __future__ import annotations

from pathlib import Path

import pytest

from statecell_boards import program
from statecell_boards.errors import BoardError
from statecell_boards.registry import board

BOARD = board("ulx3s_85f")


@pytest.fixture
def bits(tmp_path: Path) -> Path:
    path = tmp_path / "ulx3s_85f.bit"
    path.write_bytes(b"bits")
    return path


def loader(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int) -> Path:
    """A loader that says a text, keeps its arguments in a file, and ends with a status."""
    script = folder / "loader"
    script.write_text(f"#!/bin/sh\necho \"$@\" > {folder}/arguments\necho '{text}' >&2\nexit {status}\n")
    script.chmod(0o755)
    monkeypatch.setattr(program, "tool", lambda _: str(script))
    return folder / "arguments"


def test_the_loader_gets_board_and_file(bits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = loader(tmp_path, monkeypatch, "Done", 0)
    program.program(BOARD, bits)
    assert arguments.read_text().split() == ["--board", "ulx3s", str(bits)]


def test_the_loader_gets_the_boards_own_options(bits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = loader(tmp_path, monkeypatch, "Done", 0)
    program.program(board("icebreaker"), bits)
    assert arguments.read_text().split() == ["--board", "ice40_generic", "--write-flash", str(bits)]


@pytest.mark.parametrize(("text", "words"), [
    ("unable to open ftdi device: -3 (device not found)", "No ULX3S 85F answers on USB"),
    ("error while loading shared libraries: libftdi1.so.2: cannot open", "apt install libusb-1.0-0 libftdi1-2"),
    ("CRC error at frame 7", "could not load the ULX3S 85F: CRC error at frame 7."),
])
def test_what_the_loader_says_becomes_one_sentence(
    bits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    loader(tmp_path, monkeypatch, text, 1)
    with pytest.raises(BoardError) as caught:
        program.program(BOARD, bits)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_bitstream_is_named_with_its_command(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="make bitstream BOARD=ulx3s_85f"):
        program.program(BOARD, tmp_path / "none.bit")


def test_a_loader_that_does_not_end_is_given_up(bits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "slow"
    script.write_text("#!/bin/sh\nexec sleep 20\n")
    script.chmod(0o755)
    monkeypatch.setattr(program, "tool", lambda _: str(script))
    monkeypatch.setattr(program, "LIMIT_S", 0.2)
    with pytest.raises(BoardError, match="unplug it"):
        program.program(BOARD, bits)
