"""The serial driver against boards that are good, bad, silent, gone, or something else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from statecell.device import Device
from statecell.link import serial as serial_module
from statecell.link.errors import (
    DeviceRestartedError,
    LinkError,
    LinkTimeout,
    NoDeviceError,
    PortError,
    SpecificationMismatch,
    UnpluggedError,
)
from statecell.link.framing import Request, decode
from statecell.link.port import Port
from statecell.link.serial import SerialTransport
from statecell.spec.commands import Opcode
from statecell.spec.serial import START_BAUD
from tests.link.fake_board import LINK_BYTES, FakeBoard, FakeDevice, info


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serial_module, "OPEN_S", 1.0)
    monkeypatch.setattr(serial_module, "_FIRST_BYTE_S", 1e-3)


def connect(board: FakeBoard, baud: int = 0) -> SerialTransport:
    return SerialTransport(Port(board.path, START_BAUD), baud=baud)


def frames(count: int, first: int = 0) -> list[bytes]:
    return [Request(opcode=Opcode.OPEN, count=n).encode(first + n, LINK_BYTES) for n in range(count)]


def test_carries_frames_and_takes_the_fastest_rate() -> None:
    with FakeBoard() as board:
        link = connect(board)
        assert link.baud == 3_000_000 and link.link_bytes == LINK_BYTES
        answers = link.exchange(frames(40), timeout=5)
        assert [decode(a, LINK_BYTES).value for a in answers] == list(range(2, 42))  # INFO was the first
        assert link.exchange([], timeout=1) == []
        link.close()
        link.close()


@pytest.mark.parametrize(("baud", "taken"), [(115_200, 115_200), (1_000_000, 1_000_000), (500_000, 500_000)])
def test_the_address_limits_the_rate(baud: int, taken: int) -> None:
    with FakeBoard() as board:
        link = serial_module.open_transport(f"//{board.path}?baud={baud}", timeout=5)
        assert link.baud == taken
        link.close()


def test_a_rate_that_does_not_carry_is_left() -> None:
    """The port takes every rate, the adapter behind it does not: the next lower one is tried."""
    device = FakeDevice()
    board: FakeBoard

    def talk(data: bytes) -> bytes:
        import termios

        fast = termios.tcgetattr(board._slave)[4] > termios.B1000000
        return b"\xf0\x80" if fast else board._frames(data)

    with FakeBoard(device, lambda data: talk(data)) as board:
        link = connect(board)
        assert link.baud == 1_000_000
        link.exchange(frames(3), timeout=5)
        link.close()


def test_more_than_the_board_offers_is_refused() -> None:
    with FakeBoard() as board, pytest.raises(PortError, match="at most 3000000 baud and 4000000"):
        connect(board, 4_000_000)


@pytest.mark.parametrize("rest", ["", "//", "///dev/x?speed=3", "///dev/x?baud=fast", "///dev/x?baud=9600"])
def test_an_address_is_explained(rest: str) -> None:
    with pytest.raises(LinkError, match="serial:///dev/ttyUSB0"):
        serial_module.open_transport(rest, timeout=1)


def test_no_such_port(tmp_path: Path) -> None:
    with pytest.raises(PortError, match="there is no serial port"):
        Device.open(f"serial://{tmp_path}/none")
    with pytest.raises(PortError, match="cannot be used as a serial port"):
        (tmp_path / "file").write_text("")
        Device.open(f"serial://{tmp_path}/file")


def test_a_port_in_use() -> None:
    with FakeBoard() as board:
        link = connect(board)
        with pytest.raises(PortError, match="in use by another program"):
            connect(board)
        link.exchange(frames(2), timeout=5)
        link.close()
        connect(board).close()


def test_silence_echo_and_other_devices() -> None:
    with FakeBoard(talk=lambda data: b"") as board, pytest.raises(NoDeviceError, match="nothing answers"):
        connect(board)
    with FakeBoard(talk=lambda data: data) as board, pytest.raises(NoDeviceError, match="not as a statecell"):
        connect(board)
    with FakeBoard(talk=lambda data: b"login: \r\n") as board, pytest.raises(NoDeviceError, match="not as a statecell"):
        connect(board)


def test_another_release() -> None:
    device = FakeDevice(info_payload=info(fingerprint=5))
    with FakeBoard(device) as board, pytest.raises(SpecificationMismatch, match="0x00000005.*this release's bitstream"):
        connect(board)
    with FakeBoard(FakeDevice(info_payload=info()[:16])) as board, pytest.raises(SpecificationMismatch):
        connect(board)


def test_unplugged() -> None:
    board = FakeBoard()
    link = connect(board)
    board.unplug()
    for _ in range(2):
        with pytest.raises(UnpluggedError, match="the cable was pulled"):
            link.exchange(frames(2), timeout=5)
    link.close()


@pytest.mark.parametrize("between", [True, False])
def test_a_restarted_board_never_answers(between: bool) -> None:
    """Between two exchanges or in the middle of one: the session is gone, and the driver says so from then on."""
    device = FakeDevice()
    board: FakeBoard
    seen: list[bytes] = []

    def talk(data: bytes) -> bytes:
        seen.append(data)
        if len(seen) == 2 and not between:
            device.restart()
        return board._frames(data)

    with FakeBoard(device) as board:
        link = connect(board)
        link.exchange(frames(3), timeout=5)
        board.talk = talk
        if between:
            device.restart()
        for _ in range(2):
            with pytest.raises(DeviceRestartedError, match="what its array held is gone"):
                link.exchange(frames(30, 3), timeout=20)
                link.exchange(frames(30, 33), timeout=20)
        link.close()


def test_a_deaf_board_is_a_timeout_and_the_next_exchange_works() -> None:
    device = FakeDevice()
    board: FakeBoard
    deaf: list[bool] = []

    with FakeBoard(device, lambda data: b"" if deaf else board._frames(data)) as board:
        link = connect(board)
        deaf.append(True)
        start = time.monotonic()
        with pytest.raises(LinkTimeout):
            link.exchange(frames(3), timeout=1)
        assert time.monotonic() - start < 3
        deaf.clear()
        answers = link.exchange(frames(3, 100), timeout=10)
        assert [decode(a, LINK_BYTES).sequence for a in answers] == [100, 101, 102]
        assert device.applied == [(Opcode.INFO, 0), *[(Opcode.OPEN, n) for n in range(3)]]
        link.close()


def test_garbage_is_passed_over() -> None:
    board: FakeBoard
    noise = iter([b"\x07junk\0\0\xff\xff", b"\0", os.urandom(300)])
    with FakeBoard(talk=lambda data: next(noise, b"") + board._frames(data)) as board:
        link = connect(board)
        link.exchange(frames(5), timeout=5)
        assert link.counts.damaged >= 1
        link.close()


def test_an_idle_link_is_set_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The board may have gone back to the first rate; what was sent before stays as it is."""
    with FakeBoard() as board:
        link = connect(board)
        link.exchange(frames(2), timeout=5)
        monkeypatch.setattr(serial_module, "SILENCE_S", 0.02)
        time.sleep(0.05)
        link.exchange(frames(2, 2), timeout=5)
        assert link.counts.reconnects == 1 and link.baud == 3_000_000
        link.close()


def test_frames_that_do_not_fit_are_refused() -> None:
    with FakeBoard() as board:
        link = connect(board)
        with pytest.raises(ValueError, match="multiple of the link word"):
            link.exchange([b"123"], timeout=1)
        with pytest.raises(ValueError, match="ask for less at once"):
            link.exchange([Request(opcode=Opcode.READ_ROWS, count=60).encode(0, LINK_BYTES)], timeout=1)
        link.exchange(frames(2), timeout=5)
        link.close()
