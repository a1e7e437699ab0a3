"""The simulated board on a pseudo terminal: what a program sees is a serial port with a board on it."""

from __future__ import annotations

import ctypes
import os
import threading
import tty
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from statecell.link.errors import LinkError
from statecell.link.port import Port
from statecell.link.serial import SerialTransport
from statecell.spec.geometry import CONFIGS, Geometry
from statecell.spec.serial import START_BAUD
from statecell_sim.builder import build_board
from statecell_sim.errors import SimulatorError
from statecell_sim.simulator import verilog_of

Wire = Literal["uart", "bytes"]
WIRES: tuple[Wire, ...] = ("uart", "bytes")
CLOCK_HZ = 24_000_000
"""Clock of a configuration that names none: 3 Mbaud are then eight cycles a bit, the fastest that the UART takes."""
CHUNK_SECONDS = 0.1  # longest stay in C: a stop is answered after it


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong on the wire, drawn from `seed`, in each direction.

    With probability `rate` a byte has one of its ten bits turned over (start and stop bit among them), is lost, comes
    twice, or another comes before it, each as often. With probability `outage` the cable goes out with a byte, for the
    time of 300: on the pins somewhere in the byte's ten bits, both wires at once, and back whatever the wires then say.
    """

    rate: float = 0.0
    outage: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rate", "outage"):
            if not 0 <= getattr(self, name) < 1:
                raise SimulatorError(f"The fault {name} is {getattr(self, name)}; give a probability below 1 a byte.")


NO_FAULTS = Faults()


class _Counts(ctypes.Structure):
    """`struct Counts` of board.cpp."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("bytes_in", "bytes_out", "flipped", "lost", "repeated", "inserted", "outages")
    ]


class Board:
    """A Verilated board and the pseudo terminal that its two pins are wired to.

    `path` is what a program opens. The board runs only inside `run`; one thread at a time. It keeps its state while
    programs come and go, and rests while there is nothing to do.
    """

    def __init__(self, library: Path, *, clock_hz: int, faults: Faults = NO_FAULTS) -> None:
        self._c = _load(library)
        self._handle: int | None = self._c.sb_create(float(clock_hz))
        # The program's end stays open here too: otherwise the board's end fails while no program has it open.
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        os.set_blocking(self._master, False)
        self.path = os.ttyname(self._slave)
        self.reset()
        self.set_faults(faults)

    def reset(self) -> None:
        """The board's power off and on: its state is gone."""
        self._c.sb_reset(self._alive())

    def set_faults(self, faults: Faults) -> None:
        """Disturb the wire from now on."""
        self._c.sb_faults(self._alive(), faults.rate, faults.outage, faults.seed % 2**64)

    @property
    def counts(self) -> dict[str, int]:
        """Bytes in and out as the programs wrote and the board sent them, and faults by kind."""
        counts = _Counts()
        self._c.sb_counts(self._alive(), ctypes.byref(counts))
        return {name: getattr(counts, name) for name, *_ in _Counts._fields_}

    @property
    def cycles(self) -> int:
        """Clock cycles since creation; none pass while the board rests."""
        return int(self._c.sb_cycles(self._alive()))

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set. Raises SimulatorError if the terminal fails."""
        while not stop.is_set():
            if self._c.sb_run(self._alive(), self._master, CHUNK_SECONDS):
                raise SimulatorError("The board's pseudo terminal failed; start the board again.")

    def close(self) -> None:
        """Destroy the board and its terminal; a second call does nothing."""
        if self._handle is not None:
            self._c.sb_destroy(self._handle)
            self._handle = None
            os.close(self._master)
            os.close(self._slave)

    def _alive(self) -> int:
        if self._handle is None:
            raise LinkError("The simulated board is closed: start a new one.")
        return self._handle


class BoardThread:
    """A board that runs beside the program, in a thread of its own; a context manager."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.start()

    def __enter__(self) -> BoardThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Let the board run on."""
        self._stop.clear()
        self._thread = threading.Thread(target=self.board.run, args=(self._stop,), name="board", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Stop the board's clock, so that its other methods may be called; `start` lets it run on."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Stop and destroy the board."""
        self.pause()
        self.board.close()


class BoardTransport:
    """The serial transport on a simulated board that lives as long as the transport."""

    def __init__(self, running: BoardThread, *, baud: int, timeout: float) -> None:
        self.running = running
        try:
            self.serial = SerialTransport(Port(running.board.path, START_BAUD), baud=baud, timeout=timeout)
        except BaseException:
            running.close()
            raise
        self.link_bytes = self.serial.link_bytes

    @property
    def counts(self) -> Any:
        """As SerialTransport's."""
        return self.serial.counts

    @property
    def baud(self) -> int:
        """Bit rate of the link."""
        return self.serial.baud

    def exchange(self, frames: Sequence[bytes], *, timeout: float) -> list[bytes]:
        """As SerialTransport's."""
        return self.serial.exchange(frames, timeout=timeout)

    def close(self) -> None:
        """Release the port and destroy the board."""
        self.serial.close()
        self.running.close()


def board_geometry(name: str) -> Geometry:
    """The configuration of a board, with CLOCK_HZ where it names no clock. Raises LinkError for an unknown one."""
    if name not in CONFIGS:
        raise LinkError(f"There is no configuration {name!r}: choose one of {', '.join(CONFIGS)}.")
    g = CONFIGS[name]
    return replace(g, clock_hz=g.clock_hz or CLOCK_HZ)


def board_of(name: str, wire: Wire = "uart", faults: Faults = NO_FAULTS) -> Board:
    """A board with a named configuration, built at first use. Raises LinkError and what `build_board` raises."""
    g = board_geometry(name)
    library = build_board(verilog_of(g, wire), pins=wire == "uart")
    return Board(library, clock_hz=g.clock_hz, faults=faults)


def open_transport(rest: str, *, timeout: float) -> BoardTransport:
    """Open what follows `board:` in a device's address: `CONFIG`, then options as in a query.

    `transport=bytes` leaves the UART out; `faults=RATE`, `outage=RATE` and `seed=N` disturb the wire; `baud=N` is as in
    `serial:`. Raises LinkError for what it does not know, SimulatorError, and what SerialTransport raises.
    """
    name, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    wire = options.pop("transport", "uart")
    try:
        rate, outage = float(options.pop("faults", 0)), float(options.pop("outage", 0))
        faults = Faults(rate=rate, outage=outage, seed=int(options.pop("seed", 0)))
        baud = int(options.pop("baud", 0))
        if options or wire not in WIRES:
            raise ValueError(query)
    except ValueError as error:
        raise LinkError(
            f"The simulated board does not know {query!r}: write board:{name}?transport=bytes&faults=0.001&seed=1, "
            "with transport uart or bytes."
        ) from error
    chosen: Wire = "bytes" if wire == "bytes" else "uart"
    return BoardTransport(BoardThread(board_of(name, chosen, faults)), baud=baud, timeout=timeout)


def _load(library: Path) -> Any:
    """The library with the types of its functions declared."""
    c = ctypes.CDLL(str(library))
    handle, u64, real = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double
    declared: dict[str, tuple[Any, list[Any]]] = {
        "sb_create": (handle, [real]),
        "sb_destroy": (None, [handle]),
        "sb_cycles": (u64, [handle]),
        "sb_counts": (None, [handle, ctypes.POINTER(_Counts)]),
        "sb_reset": (None, [handle]),
        "sb_faults": (None, [handle, real, real, u64]),
        "sb_run": (ctypes.c_int, [handle, ctypes.c_int, real]),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(c, name)
        function.restype = result
        function.argtypes = arguments
    return c
