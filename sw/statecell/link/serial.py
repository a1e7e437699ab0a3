"""The driver's end of a board on a serial port: sessions, bit rates, repeats."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from urllib.parse import parse_qsl

from statecell.link import cobs
from statecell.link.errors import (
    DeviceRestartedError,
    LinkError,
    LinkTimeout,
    NoDeviceError,
    PortError,
    SpecificationMismatch,
)
from statecell.link.framing import FrameError, Request, Response, info_of
from statecell.link.port import Port
from statecell.link.window import UNREAD, Parcel, Window, restore, strip
from statecell.spec import frame
from statecell.spec.commands import INFO_FIELDS, Info, Opcode, Status
from statecell.spec.geometry import Geometry, of_info
from statecell.spec.serial import (
    DELIMITER,
    SESSION_BITS,
    SHORTEST,
    SILENCE_S,
    START_BAUD,
    SerialLink,
    answer_bytes,
    divisor,
)

RATES = (
    12_000_000, 8_000_000, 6_000_000, 4_000_000, 3_000_000, 2_000_000, 1_500_000, 1_000_000, 921_600, 460_800, 230_400,
)  # fmt: skip
"""Rates that are tried, fastest first. None lies below twice START_BAUD: a zero byte at START_BAUD must be a break."""
OPEN_S = 5.0
"""Longest wait for the first sign of a device, in seconds."""
_SMALLEST = SerialLink(request_bytes=64, answer_bytes=128, answers=1)
"""What every device has, until INFO has told."""
_LINK_BYTES = 4
"""Frames before INFO are padded as for a link of this width, which is not at all."""
_INFO_ANSWER = SHORTEST + 4 * len(INFO_FIELDS)
_TRIES = 3
"""Time-outs in a row after which the link itself is set up again."""
_LEAST_PATIENCE = 0.05  # a USB adapter collects bytes for up to 16 ms before it hands them on
_MOST_PATIENCE = 2.0
_FIRST_BYTE_S = 5e-3
"""Seconds for a byte of a request or an answer until they have been measured: a simulated board is slow."""


@dataclass(kw_only=True)
class LinkCounts:
    """What went over the wire since the transport was opened.

    ``bytes_out``, ``bytes_in``: all bytes, repeats and delimiters included. ``repeats``: requests sent again.
    ``damaged``: frames that came with an error or not whole, and requests that the device could not read. ``timeouts``:
    silences that ended in a repeat. ``reconnects``: times the link was set up again.
    """

    bytes_out: int = 0
    bytes_in: int = 0
    repeats: int = 0
    damaged: int = 0
    timeouts: int = 0
    reconnects: int = 0

    def as_dict(self) -> dict[str, int]:
        """Plain values, for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


class SerialTransport:
    """Transport over a serial port: every frame is carried out once and in order, or LinkTimeout leaves that open.

    ``baud`` is the fastest rate that may be used; 0 leaves the choice to INFO and the port. ``timeout`` (seconds)
    bounds each step of opening; the wait for the first sign of a device is OPEN_S at most. Besides what Transport says
    raises at once: UnpluggedError when the port vanishes, DeviceRestartedError when the board's state is gone. After
    either every call raises it again: nothing is ever answered by a board that has forgotten.
    """

    def __init__(self, port: Port, *, baud: int = 0, timeout: float = 30.0) -> None:
        self.link_bytes = _LINK_BYTES
        self.counts = LinkCounts()
        self.baud = START_BAUD
        self._port = port
        self._timeout = timeout
        self._link = _SMALLEST
        self._geometry: Geometry | None = None
        self._session = 0
        self._due: int | None = None  # number of the next request; unknown after a time-out
        self._byte_s = _FIRST_BYTE_S
        self._heard = time.monotonic()
        self._buffer = bytearray()
        self._window: Window | None = None
        self._connected: Response | None = None
        self._connects = 0
        self._clock_hz = 0
        self._lost: LinkError | None = None
        try:
            info = self._introduce()
            self._choose_rate(info, baud)
        except BaseException:
            port.close()
            raise

    def exchange(self, frames: Sequence[bytes], *, timeout: float) -> list[bytes]:
        """One response for each frame, in order; the frames' sequence numbers must follow each other."""
        parcels = [self._parcel(data, index) for index, data in enumerate(frames)]
        if self._lost is not None:
            raise self._lost
        if not parcels:
            return []
        deadline = time.monotonic() + timeout
        try:
            if self._due != parcels[0].sequence:
                self._resume(0, deadline)
                self._begin(self._session, parcels[0].sequence, deadline)
            elif time.monotonic() - self._heard > SILENCE_S / 2:
                self._reconnect(deadline)  # the device may have gone back to START_BAUD
            self._due = None
            answers = self._carry(parcels, deadline)
        except LinkTimeout:
            raise
        except LinkError as error:
            self._lost = error
            raise
        self._due = (parcels[-1].sequence + 1) % frame.SEQUENCES
        return answers

    def close(self) -> None:
        """Release the port; a second call does nothing."""
        self._port.close()

    # -- requests -----------------------------------------------------------------------------------------------------
    def _parcel(self, data: bytes, index: int) -> Parcel:
        if not data or len(data) % self.link_bytes:
            raise ValueError(
                f"Frame {index} has {len(data)} bytes; it must be a multiple of the link word, {self.link_bytes} bytes."
            )
        header = frame.unpack_header(frame.REQUEST_HEADER, data)
        size, most = _INFO_ANSWER, self._link.answer_bytes - SHORTEST
        if self._geometry is not None:
            size = answer_bytes(header["opcode"], header["count"], self._geometry)
        if size > most:
            raise ValueError(
                f"the answer to frame {index} may have {size} bytes, the board can repeat {most}; ask for less at once"
            )
        return Parcel(
            sequence=header["sequence"], opcode=header["opcode"], answer_bytes=size,
            wire=cobs.encode(strip(data, self.link_bytes)),
        )

    def _carry(self, parcels: Sequence[Parcel], deadline: float) -> list[bytes]:
        """Send, repeat and collect until every parcel is answered."""
        window = self._window = Window(parcels, self._link, self.link_bytes)
        patience, tries, since = 0.0, 0, time.monotonic()
        try:
            while True:
                for wire in window.sendable():
                    self._write(wire)
                    since = time.monotonic()
                if window.done:
                    return window.answers
                expected = _LEAST_PATIENCE + 4 * self._byte_s * window.waiting_bytes
                patience = max(patience, expected)
                left = window.waiting_bytes
                if self._pump(min(since + patience, deadline) - time.monotonic()):
                    now = time.monotonic()
                    spent = (now - since) / max(left - window.waiting_bytes, 1)
                    self._byte_s += (spent - self._byte_s) / 8
                    since, patience, tries = now, 0.0, 0
                elif time.monotonic() >= deadline:
                    raise LinkTimeout(
                        f"{self._port.path}: the device did not answer in time: {len(window.answers)} of "
                        f"{len(parcels)} responses came; what it did with the others is unknown"
                    )
                elif time.monotonic() >= since + patience:
                    self.counts.timeouts += 1
                    tries += 1
                    if tries == _TRIES:
                        tries = 0
                        self._reconnect(deadline)
                    window.rewind()
                    since, patience = time.monotonic(), min(2 * patience, max(_MOST_PATIENCE, expected))
        finally:
            self.counts.repeats += window.repeats
            self._window = None

    # -- session ------------------------------------------------------------------------------------------------------
    def _introduce(self) -> Info:
        """Begin a session with whatever is there, and read INFO. Raises NoDeviceError, SpecificationMismatch."""
        running = self._connect(0, 0, time.monotonic() + min(self._timeout, OPEN_S))
        deadline = time.monotonic() + self._timeout
        if running is None:
            raise NoDeviceError(
                f"what is on {self._port.path} answers, but not as a statecell of this release; check the bitstream"
                if self.counts.bytes_in
                else f"nothing answers on {self._port.path}; check the board's power, its bitstream and its port"
            )
        self._begin(running, frame.SEQUENCES - 1, deadline)
        request = Request(opcode=Opcode.INFO).encode(frame.SEQUENCES - 1, self.link_bytes)
        answer = self._carry([self._parcel(request, 0)], deadline)[0]
        info = info_of(
            answer[frame.BLOCK : -frame.CRC_BYTES],
            f"the firmware on {self._port.path} is of another release: specification fingerprint",
            "program the board with this release's bitstream",
        )
        self._geometry = of_info(info)
        self._link = SerialLink(
            request_bytes=info.request_bytes, answer_bytes=info.answer_bytes, answers=info.answers
        )
        self.link_bytes = info.link_bytes
        self._due = 0
        return info

    def _choose_rate(self, info: Info, most: int) -> None:
        """Go up to the fastest rate that device and port take, and that carries a frame there and back."""
        self._clock_hz = info.clock_hz
        offered = info.clock_hz // info.bit_cycles
        if most > offered:
            raise PortError(
                f"the board on {self._port.path} offers at most {offered} baud and {most} was asked for; lower baud="
            )
        for rate in sorted({most, *RATES}, reverse=True):
            if 2 * START_BAUD <= rate <= (most or offered) and self._port.takes(rate) and self._raise_to(rate):
                return

    def _raise_to(self, rate: int) -> bool:
        """Both sides to ``rate``, from START_BAUD; on failure both are back at START_BAUD."""
        self._resume(divisor(self._clock_hz, rate), time.monotonic() + self._timeout)
        self._set_rate(rate)
        if self._connect(self._session, self._session, time.monotonic() + 4 * self._patience()) == self._session:
            return True
        self._set_rate(START_BAUD)
        self._resume(0, time.monotonic() + self._timeout)
        return False

    def _set_rate(self, rate: int) -> None:
        self._port.drain()
        self._port.set_rate(rate)
        self.baud = rate

    def _begin(self, running: int, sequence: int, deadline: float) -> None:
        """A new session in place of the one that runs; ``sequence`` is the number of its first request."""
        session = 1 + secrets.randbelow((1 << SESSION_BITS) - 1)
        found = self._connect(running, session, deadline, sequence=(sequence - 1) % frame.SEQUENCES)
        self._check(found, session)
        self._session = session

    def _resume(self, bit: int, deadline: float) -> None:
        """Make sure that the session still runs, and set the length of a bit unless it is 0."""
        self._check(self._connect(self._session, self._session, deadline, bit=bit), self._session)

    def _reconnect(self, deadline: float) -> None:
        """Find the device again at START_BAUD, make sure that it still has its session, and raise the rate again."""
        self.counts.reconnects += 1
        rate = self.baud
        self._set_rate(START_BAUD)
        self._resume(0, deadline)
        if rate != START_BAUD:
            self._raise_to(rate)

    def _check(self, found: int | None, expected: int) -> None:
        if found is None:
            raise LinkTimeout(f"the device on {self._port.path} does not answer any more; check the cable")
        if found != expected:
            raise DeviceRestartedError(
                f"the board on {self._port.path} was reset, power-cycled or used by another program: what its array "
                "held is gone; open the device again and start over"
            )

    def _connect(
        self, running: int, session: int, deadline: float, *, bit: int = 0, sequence: int | None = None
    ) -> int | None:
        """CONNECT until it is answered; returns the session that runs then, None if time is up.

        The device takes ``session`` only if ``running`` runs, so that a CONNECT can be repeated: a board that lost its
        state never answers as if it had it.
        """
        self._connects = (self._connects + 1) % frame.SEQUENCES
        number = self._connects if sequence is None else sequence
        request = Request(opcode=Opcode.CONNECT, slot=running, first=session, count=bit)
        wire = cobs.encode(strip(request.encode(number, _LINK_BYTES), _LINK_BYTES))
        self._connected = None
        patience = self._patience()
        tries = 0
        while time.monotonic() < deadline:
            tries += 1
            since = time.monotonic()
            # Zeros end what stands in the device's queue, and are a break where it still has a faster rate.
            self._write(bytes([DELIMITER]) * 2 + wire)
            until = min(time.monotonic() + patience, deadline)
            while (left := until - time.monotonic()) > 0:
                self._pump(left)
                answer = self._connected
                if answer is not None and (answer.sequence, answer.slot) == (number, running):
                    if answer.status is not Status.OK:
                        raise SpecificationMismatch(
                            f"the firmware on {self._port.path} is of another release: it refuses CONNECT "
                            f"({answer.status.name}); program the board with this release's bitstream"
                        )
                    if tries == 1:
                        self._byte_s = (time.monotonic() - since) / (2 * SHORTEST)
                    elif bit:
                        self._hush(patience)
                    return answer.value
            patience *= 2
        return None

    def _patience(self) -> float:
        return 2 * _LEAST_PATIENCE + 3 * 2 * SHORTEST * self._byte_s

    # -- bytes --------------------------------------------------------------------------------------------------------
    def _write(self, data: bytes) -> None:
        self.counts.bytes_out += len(data)
        self._port.write(data)

    def _hush(self, quiet: float) -> None:
        """Wait until nothing has come for ``quiet`` seconds: answers to repeats must not meet another rate."""
        while chunk := self._port.read(quiet):
            self.counts.bytes_in += len(chunk)
        self._buffer.clear()

    def _pump(self, wait: float) -> bool:
        """Take what comes within ``wait`` seconds; True if a response that was waited for is among it."""
        chunk = self._port.read(max(wait, 0.0))
        self.counts.bytes_in += len(chunk)
        useful = False
        self._buffer += chunk
        *wires, rest = self._buffer.split(bytes([DELIMITER]))
        self._buffer = bytearray(rest)
        for wire in wires:
            if wire:
                useful |= self._take(bytes(wire))
        return useful

    def _take(self, wire: bytes) -> bool:
        try:
            data, response = restore(cobs.decode(wire), self.link_bytes)
        except FrameError:
            self.counts.damaged += 1
            if self._window is not None:
                self._window.damaged()
            return False
        self._heard = time.monotonic()
        if response.status in UNREAD:
            self.counts.damaged += 1
        elif response.opcode == Opcode.CONNECT:
            self._connected = response
            return True
        return self._window is not None and self._window.take(data, response)


def open_transport(rest: str, *, timeout: float) -> SerialTransport:
    """Open what follows `serial:` in a device's address: `//PATH`, then `?baud=N` for the fastest rate to use.

    Raises LinkError for another form, PortError, NoDeviceError, SpecificationMismatch.
    """
    path, _, query = rest.removeprefix("//").partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    baud = options.pop("baud", "0")
    if not path or options or not baud.isdecimal() or (baud != "0" and int(baud) < START_BAUD):
        raise LinkError(
            f"'serial:{rest}' is not a serial port's address; write serial:///dev/ttyUSB0 or "
            f"serial:///dev/ttyUSB0?baud=3000000, with a baud of {START_BAUD} or more"
        )
    return SerialTransport(Port(path, START_BAUD), baud=int(baud), timeout=timeout)

