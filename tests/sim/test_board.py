"""The simulated board: the real driver over a pseudo terminal, faults on its pins, programs that die, the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import serial

from statecell.device import Device
from statecell.link.errors import DeviceRestartedError, LinkError, NoDeviceError
from statecell.link.framing import Request
from statecell.link.port import Port
from statecell.link.serial import SerialTransport
from statecell.spec.commands import Opcode, Status
from statecell.spec.geometry import config
from statecell.spec.serial import START_BAUD, SerialLink
from statecell_sim import board as board_module
from statecell_sim.benches.conversation import Conversation
from statecell_sim.board import NO_FAULTS, BoardThread, Faults, Wire, board_of
from statecell_sim.errors import SimulatorError

CONFIG = "tiny"
SEED = 5
WAIT_S = 60.0


@pytest.fixture(params=["uart", "bytes"])
def running(request: pytest.FixtureRequest) -> Iterator[BoardThread]:
    wire: Wire = request.param
    with BoardThread(board_of(CONFIG, wire)) as thread:
        yield thread


@pytest.fixture
def quick() -> Iterator[BoardThread]:
    with BoardThread(board_of(CONFIG, "bytes")) as thread:
        yield thread


def connect(thread: BoardThread) -> Device:
    return Device(SerialTransport(Port(thread.board.path, START_BAUD)), timeout=WAIT_S)


def test_commands_equal_the_model(running: BoardThread) -> None:
    talk = Conversation(config(CONFIG), SEED)
    talk.wander(60)
    good = [(r, due) for r, due in zip(talk.requests, talk.expected, strict=True) if due.status is not Status.BAD_CRC]
    with connect(running) as device:
        device.reset()
        assert device.info.clock_hz == board_module.CLOCK_HZ
        assert device.info.request_bytes == SerialLink().request_bytes
        answers = device.submit([request for request, _ in good])
        for (request, due), got in zip(good, answers, strict=True):
            assert (got.status, got.value, got.payload) == (due.status, due.value, due.payload), request
        assert device.transport.baud == 3_000_000  # type: ignore[attr-defined]


def test_the_small_board_equals_the_model() -> None:
    """At its own fastest rate, with a request that is longer than its queue."""
    g = config("icebreaker")
    talk = Conversation(g, SEED)
    talk.wander(30)
    good = [(r, due) for r, due in zip(talk.requests, talk.expected, strict=True) if due.status is not Status.BAD_CRC]
    rng = np.random.default_rng(SEED)
    k, v = (rng.integers(-9000, 9000, (40, g.head_dim)).astype(np.int16) for _ in range(2))
    assert 4 * k.nbytes // 2 > SerialLink().request_bytes
    with BoardThread(board_of(g.name, "uart")) as thread, connect(thread) as device:
        device.reset()
        answers = device.submit([request for request, _ in good])
        for (request, due), got in zip(good, answers, strict=True):
            assert (got.status, got.value, got.payload) == (due.status, due.value, due.payload), request
        device.reset()
        device.open_slot(0)
        device.map_pages(0, [3, 1, 2])
        assert device.append(0, k, v) == 40
        counts = device.transport.counts  # type: ignore[attr-defined]
        assert device.transport.baud == g.clock_hz // 16  # type: ignore[attr-defined]
        assert counts.repeats == 0, "a byte was lost: the device stores more slowly than the wire brings vectors"


def test_state_outlives_programs(running: BoardThread) -> None:
    rng = np.random.default_rng(SEED)
    k, v = (rng.integers(-9000, 9000, (3, 32)).astype(np.int16) for _ in range(2))
    with connect(running) as device:
        device.reset()
        device.open_slot(1)
        device.map_pages(1, [2])
        assert device.append(1, k, v) == 3
        rows = device.read_rows(1, 0, 3)
    with connect(running) as device:
        assert device.read_rows(1, 0, 3) == rows
        assert device.append(1, k[:1], v[:1]) == 4


def test_a_power_cycle_is_noticed(running: BoardThread) -> None:
    with connect(running) as device:
        device.reset()
        running.pause()
        running.board.reset()
        running.start()
        with pytest.raises(DeviceRestartedError):
            device.counters()


KILLED = """
import sys
import numpy as np
from statecell.device import Device
device = Device.open("serial://" + sys.argv[1], timeout=60)
device.reset()
device.open_slot(0)
device.map_pages(0, range(8))
vectors = np.ones((1, 32), np.int16)
for number in range(8):
    device.append(0, vectors, vectors)
print("stored", flush=True)
while True:
    device.attend(0, vectors, [0], [8], 20)
"""


def test_a_program_that_is_killed_leaves_a_usable_board(running: BoardThread) -> None:
    for _ in range(2):
        command = [sys.executable, "-c", KILLED, running.board.path]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None and program.stdout.readline() == "stored\n"
        time.sleep(0.3)
        program.send_signal(signal.SIGKILL)
        program.wait()
        program.stdout.close()
        with connect(running) as device:
            keys, values = device.read_rows(0, 0, 8)
            assert keys == keys[: len(keys) // 8] * 8 and values == values[: len(values) // 8] * 8
            ninth = Request(opcode=Opcode.READ_ROWS, slot=0, first=8, count=1)
            assert device.submit([ninth])[0].status is Status.BAD_RANGE


def test_a_cable_that_is_pulled_in_mid_frame_loses_and_doubles_nothing(running: BoardThread) -> None:
    """Eight APPENDs one by one, the cable out again and again: rows and their number are as if it had never been."""
    rng = np.random.default_rng(SEED)
    k, v = (rng.integers(-9000, 9000, (8, 32)).astype(np.int16) for _ in range(2))

    def disturb(faults: Faults) -> None:
        running.pause()
        running.board.set_faults(faults)
        running.start()

    with connect(running) as device:
        device.reset()
        for slot in range(2):
            device.open_slot(slot)
            device.map_pages(slot, [2 * slot, 2 * slot + 1])
        device.append(0, k, v)
        disturb(Faults(outage=0.001, seed=SEED))
        for n in range(8):
            assert device.append(1, k[n : n + 1], v[n : n + 1]) == n + 1
        disturb(NO_FAULTS)
        assert running.board.counts["outages"] > 1, "the cable was never out; choose another seed"
        assert device.read_rows(1, 0, 8) == device.read_rows(0, 0, 8)
        ninth = Request(opcode=Opcode.READ_ROWS, slot=1, first=8, count=1)
        assert device.submit([ninth])[0].status is Status.BAD_RANGE


def test_a_half_frame_does_no_harm(running: BoardThread) -> None:
    with connect(running) as device:
        device.reset()
    with serial.Serial(running.board.path, START_BAUD) as port:
        port.write(b"\x15\xc1\x20" + os.urandom(40))
    with connect(running) as device:
        device.open_slot(0)


def test_another_rate_is_not_understood() -> None:
    """A program at a wrong rate gets no answer from the pins, and one at the right rate does afterwards."""
    with BoardThread(board_of(CONFIG, "uart")) as thread:
        port = Port(thread.board.path, 4 * START_BAUD)
        with pytest.raises(NoDeviceError):
            _at(port, 4 * START_BAUD)
        connect(thread).close()


def _at(port: Port, baud: int) -> SerialTransport:
    port.set_rate = lambda baud: None  # type: ignore[method-assign]
    return SerialTransport(port, baud=baud, timeout=1.0)


@pytest.mark.parametrize("rest", ["tiny?transport=radio", "tiny?speed=1", "tiny?faults=many"])
def test_an_address_is_explained(rest: str) -> None:
    with pytest.raises(LinkError, match="transport=bytes&faults=0.001"):
        board_module.open_transport(rest, timeout=1)
    with pytest.raises(LinkError, match="choose one of tiny"):
        board_module.open_transport("huge", timeout=1)
    with pytest.raises(SimulatorError, match="probability"):
        board_module.open_transport("tiny?faults=2", timeout=1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_runs_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    name = tmp_path / "statecell0"
    name.symlink_to(tmp_path / "nothing")  # left behind by a board that was killed
    program_path = Path(sys.executable).parent / "statecell"
    command = [str(program_path), "board", "--config", CONFIG, "--pty", str(name), "--json"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert json.loads(program.stdout.readline())["port"] == str(name)
    for _ in range(2):
        with Device.open(f"serial://{name}", timeout=WAIT_S) as device:
            assert device.geometry.head_dim == 32
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode and "exists; give another --pty name" in again.stderr
    program.send_signal(number)
    rest, _ = program.communicate(timeout=30)
    assert program.returncode == 0 and json.loads(rest)["bytes_in"] > 0
    assert not name.is_symlink()
