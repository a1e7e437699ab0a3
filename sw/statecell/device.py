"""The driver: one blocking, typed class over any transport. It speaks integers; runtime/ speaks floats and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statecell.errors import StatecellError
from statecell.link.address import TRANSPORTS
from statecell.link.errors import LinkError, SpecificationMismatch
from statecell.link.framing import FrameError, Request, Response, decode, describe, info_of
from statecell.link.transport import Transport
from statecell.snapshot import (
    StateSnapshot,
    StateStatus,
    decode_status,
    encode_mode,
    encode_status,
    same_mode,
    state_pages,
    state_rows,
)
from statecell.spec import commands, frame
from statecell.spec.commands import (
    COUNTER_FIELDS,
    Counters,
    Flag,
    Info,
    Opcode,
    StateFlag,
    StateMode,
    Status,
)
from statecell.spec.geometry import of_info

_BATCH_BYTES = 1 << 18
"""Request bytes given to the transport at once, so that a time-out bounds a fraction of a second of work."""
_BATCH_QUEUES = 8
"""The same for a serial link, in units of the device's queue: a slow link or a simulated board takes seconds for it."""


__all__ = [
    "ArrayFullError", "Attention", "Device", "DeviceError", "ProtocolError", "RowRangeError", "SlotError",
    "SpecificationMismatch", "UnsupportedFormatError", "append_request", "attend_request", "attention", "map_request",
]  # fmt: skip

class DeviceError(StatecellError):
    """The device refused a command; ``status`` says why. Nothing stored was changed by that command."""

    def __init__(self, message: str, status: Status) -> None:
        super().__init__(message)
        self.status = status


class ProtocolError(DeviceError):
    """The device could not read a frame: bad CRC, length, version or opcode."""


class SlotError(DeviceError):
    """A slot that does not exist, is closed, or is open already."""


class ArrayFullError(DeviceError):
    """No room for more rows."""


class RowRangeError(DeviceError):
    """A row range that is empty or beyond the rows held."""


class UnsupportedFormatError(DeviceError):
    """A storage format that this device was built without."""


class StateModeError(DeviceError):
    """A snapshot of another mode than that of the state that is to take it."""


class StateValueError(DeviceError):
    """A number of a recurrent token, or of a state's mode, outside its range."""


_ERRORS: dict[Status, type[DeviceError]] = {
    Status.BAD_SLOT: SlotError,
    Status.SLOT_CLOSED: SlotError,
    Status.SLOT_OPEN: SlotError,
    Status.FULL: ArrayFullError,
    Status.BAD_PAGE: ArrayFullError,
    Status.BAD_RANGE: RowRangeError,
    Status.BAD_COUNT: RowRangeError,
    Status.BAD_FLAGS: UnsupportedFormatError,
    Status.WRONG_KIND: SlotError,
    Status.BAD_VALUE: StateValueError,
}


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Answer to one ATTEND: ``out`` int16 [n, d]; ``block`` int64 [n], see formats.output_exponent."""

    out: NDArray[np.int16]
    block: NDArray[np.int64]


class Device:
    """An attention array behind a transport; a context manager.

    Every method blocks until the device has answered or ``timeout`` seconds have passed (LinkTimeout). A refused
    command raises a subclass of DeviceError and has changed nothing on the device. Not for several threads at once.
    """

    def __init__(self, transport: Transport, *, timeout: float = 30.0, batch_bytes: int = _BATCH_BYTES) -> None:
        """Take over ``transport``. Raises SpecificationMismatch if the device was made from another specification.

        batch_bytes: frames of about so many bytes go out before answers are waited for, fewer if the device says so.
        """
        self._transport = transport
        self._timeout = timeout
        self._sequence = 0
        self._batch_bytes = batch_bytes
        try:
            self.info = self._read_info()
        except BaseException:
            transport.close()
            raise
        self.geometry = of_info(self.info)
        if self.info.request_bytes:
            self._batch_bytes = _BATCH_QUEUES * self.info.request_bytes

    @classmethod
    def open(cls, url: str, *, timeout: float = 30.0) -> Device:
        """Open a device by URL: ``sim:CONFIG`` for the Verilated simulator, ``serial:///dev/ttyUSB0`` for a board.

        Installed transports add more.

        Raises LinkError for a scheme that no installed package provides, or if the transport cannot open it.
        """
        scheme, colon, rest = url.partition(":")
        known = {e.name: e for e in entry_points(group=TRANSPORTS)}
        if not colon or scheme not in known:
            raise LinkError(
                f"{url!r} is not a device this installation can open; a URL begins with one of "
                f"{', '.join(sorted(f'{name}:' for name in known)) or '(none installed)'}"
            )
        return cls(known[scheme].load()(rest, timeout=timeout), timeout=timeout)

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def transport(self) -> Transport:
        """The link, for those who measure it."""
        return self._transport

    def close(self) -> None:
        """Give the transport back."""
        self._transport.close()

    # -- commands -----------------------------------------------------------------------------------------------------
    def submit(self, requests: Sequence[Request]) -> list[Response]:
        """Carry out commands in order, pipelined; returns the responses, whatever their status.

        Raises FrameError if a response is damaged or out of order, LinkTimeout if the device falls silent.
        """
        responses: list[Response] = []
        batch: list[bytes] = []
        sequences: list[int] = []
        size = 0
        link_bytes = self._transport.link_bytes
        for i, request in enumerate(requests):
            batch.append(request.encode(self._sequence, link_bytes))
            sequences.append(self._sequence)
            self._sequence = (self._sequence + 1) % frame.SEQUENCES
            size += len(batch[-1])
            if size >= self._batch_bytes or i == len(requests) - 1:
                answers = self._transport.exchange(batch, timeout=self._timeout)
                for sequence, data in zip(sequences, answers, strict=True):
                    responses.append(self._checked(data, sequence, requests[len(responses)].opcode))
                batch, sequences, size = [], [], 0
        return responses

    def require(self, requests: Sequence[Request]) -> list[Response]:
        """``submit``, then raise the DeviceError of the first refused command, if any was refused."""
        responses = self.submit(requests)
        for request, response in zip(requests, responses, strict=True):
            if response.status is not Status.OK:
                raise _ERRORS.get(response.status, ProtocolError)(
                    f"{request.opcode.name} on slot {request.slot} was refused ({response.status.name}): "
                    f"{describe(response.status)}", response.status,
                )
        return responses

    def open_slot(self, slot: int) -> None:
        """Open a slot with no pages and no rows. Raises SlotError."""
        self.require([Request(opcode=Opcode.OPEN, slot=slot)])

    def open_state(self, slot: int, mode: StateMode) -> None:
        """Open a slot for an empty recurrent state, and map the pages that it lies in.

        Raises SlotError, UnsupportedFormatError, StateValueError, and ArrayFullError where the slot's page list is too
        short for it; the slot is then closed.
        """
        alone = StateFlag.LANE_DECAY | StateFlag.SUPPLIED
        if mode.flags & StateFlag.HALVES and (mode.interval > 1 or mode.flags & alone):
            raise StateValueError(
                "a state whose keys have two halves is written back at every token, with one decay a head and scales "
                "of the device's own; give it an interval of 1 and neither LANE_DECAY nor SUPPLIED, or keep it in the "
                "integer model", Status.BAD_VALUE)
        self.require([open_state_request(slot, mode)])
        try:
            self.map_pages(slot, state_pages(mode, self.geometry.page_rows))
        except ArrayFullError:
            self.free_slot(slot)
            raise

    def recur(self, slot: int, token: StateToken) -> NDArray[np.int32]:
        """One token of a recurrent state; returns o int32 [channels]. Raises SlotError, StateValueError, ProtocolError.

        A payload that does not fit the slot's mode, and a token for a full log (ArrayFullError), are refused as a
        whole, and the state stays what it was.
        """
        return outputs(self.require([recur_request(slot, token)])[0])

    def commit(self, slot: int) -> None:
        """Add the logged tokens of a recurrent state to its rows. Raises SlotError."""
        self.require([Request(opcode=Opcode.COMMIT, slot=slot)])

    def state(self, slot: int) -> StateStatus:
        """All of a recurrent state but its rows. Raises SlotError."""
        return decode_status(self.require([Request(opcode=Opcode.STATE, slot=slot)])[0].payload)

    def snapshot(self, slot: int) -> StateSnapshot:
        """The whole of a recurrent state, bit for bit. Raises SlotError."""
        status = self.state(slot)
        keys, values = self.read_rows(slot, 0, state_rows(status.mode))
        return StateSnapshot(status=status, keys=keys, values=values)

    def restore(self, slot: int, snapshot: StateSnapshot, *, through: int) -> None:
        """Give a recurrent state the contents of a snapshot of its own or of another slot of the same mode.

        ``through``: a closed slot, through which the rows go to the state's pages; it is closed again afterwards.
        Raises StateModeError for a snapshot of another mode, SlotError, StateValueError and ValueError; the state is
        then what it was.
        """
        own = self.state(slot).mode
        if not same_mode(own, snapshot.status.mode):
            raise StateModeError(
                f"the snapshot is of another mode ({snapshot.status.mode}) than the state in slot {slot} ({own}); open "
                "a slot with the snapshot's mode", Status.WRONG_KIND)
        size = state_rows(own) * self.geometry.row_bytes
        if (len(snapshot.keys), len(snapshot.values)) != (size, size):
            raise ValueError(f"the snapshot holds {len(snapshot.keys)} and {len(snapshot.values)} bytes of rows; this "
                             f"device's state in slot {slot} has {size} in each bank")
        self.open_slot(through)
        try:
            self.map_pages(through, state_pages(own, self.geometry.page_rows))
            self.require([restore_request(slot, snapshot.status)])
            self.write_rows(through, snapshot.keys, snapshot.values)
        finally:
            self.free_slot(through)

    def free_slot(self, slot: int) -> None:
        """Close a slot. Raises SlotError."""
        self.require([Request(opcode=Opcode.FREE, slot=slot)])

    def map_pages(self, slot: int, pages: Sequence[int]) -> int:
        """Append pages to a slot; returns the pages mapped. Raises SlotError, ArrayFullError."""
        return self.require([map_request(slot, pages)])[0].value

    def truncate(self, slot: int, rows: int) -> None:
        """Keep the first ``rows`` rows of a slot. Raises SlotError, RowRangeError."""
        self.require([Request(opcode=Opcode.TRUNCATE, slot=slot, count=rows)])

    def append(self, slot: int, k: Any, v: Any, *, wide: bool = False, zero_point: bool = False) -> int:
        """Store tokens: k, v int16 [n, d] (numpy or torch); returns the rows held (two a token if ``wide``).

        Raises ValueError for another dtype or shape, and SlotError, ArrayFullError, UnsupportedFormatError.
        """
        flags = (Flag.WIDE if wide else 0) | (Flag.ZERO_POINT if zero_point else 0)
        return self.require([append_request(slot, self._vectors("k", k), self._vectors("v", v), flags)])[0].value

    def attend(self, slot: int, q: Any, start: Any, end: Any, shift: int) -> Attention:
        """Attention of q int16 [n, d], n <= lanes, over rows start[i] .. end[i] - 1 of the slot.

        ``shift`` as in docs/numerics.md: scores are 2^-shift times the product of the rotated integers, in log2 units.
        Raises ValueError for another dtype or shape, and SlotError, RowRangeError.
        """
        vectors = self._vectors("q", q)
        request = attend_request(slot, vectors, start, end, shift)
        return attention(self.require([request])[0], len(vectors), self.geometry.head_dim)

    def read_rows(self, slot: int, first: int, count: int) -> tuple[bytes, bytes]:
        """Raw key rows and raw value rows, geometry.row_bytes each. Raises SlotError, RowRangeError."""
        # A serial link keeps only so much of an answer; all of the requests are checked before rows are returned.
        size = self.geometry.row_bytes
        most = max(1, (self.info.answer_bytes // 2) // (2 * size)) if self.info.answer_bytes else max(count, 1)
        requests = [
            Request(opcode=Opcode.READ_ROWS, slot=slot, first=at, count=min(most, first + count - at))
            for at in range(first, first + max(count, 1), most)
        ]
        payload = b"".join(response.payload for response in self.require(requests))
        pairs = np.frombuffer(payload, np.uint8).reshape(count, 2, size)
        return pairs[:, 0].tobytes(), pairs[:, 1].tobytes()

    def write_rows(self, slot: int, keys: bytes, values: bytes) -> int:
        """Append raw rows to a slot; returns the rows held. Raises ValueError, SlotError, ArrayFullError."""
        size = self.geometry.row_bytes
        if len(keys) != len(values) or len(keys) % size:
            raise ValueError(f"raw rows must be equally many key and value rows of {size} bytes each")
        pairs = np.stack([np.frombuffer(x, np.uint8).reshape(-1, size) for x in (keys, values)], 1)
        request = Request(opcode=Opcode.WRITE_ROWS, slot=slot, count=len(keys) // size, payload=pairs.tobytes())
        return self.require([request])[0].value

    def counters(self, *, clear: bool = False) -> Counters:
        """Counters since reset or the last clear; ``clear`` sets them to zero after reading."""
        count = commands.CLEAR_COUNTERS if clear else 0
        payload = self.require([Request(opcode=Opcode.COUNTERS, count=count)])[0].payload
        values = np.frombuffer(payload, "<u8")
        return Counters(**{name: int(values[i]) for i, name in enumerate(COUNTER_FIELDS)})

    def reset(self) -> None:
        """Close every slot and clear the counters."""
        self.require([Request(opcode=Opcode.RESET)])

    # -- inside -------------------------------------------------------------------------------------------------------
    def _read_info(self) -> Info:
        payload = self.require([Request(opcode=Opcode.INFO)])[0].payload
        return info_of(
            payload, "the device's specification fingerprint is",
            "use the driver release that the device was built from, or build the device again",
        )

    def _checked(self, data: bytes, sequence: int, opcode: Opcode) -> Response:
        response = decode(data, self._transport.link_bytes)
        if response.status is Status.OK and (response.sequence != sequence or response.opcode != opcode):
            raise FrameError(
                f"a response answers request {response.sequence} ({response.opcode:#04x}), request {sequence} "
                f"({opcode:#04x}) was due; reset the device"
            )
        return response

    def _vectors(self, name: str, x: Any) -> NDArray[np.int16]:
        array = np.asarray(x)
        if array.dtype != np.int16 or array.ndim != 2 or array.shape[1] != self.geometry.head_dim:
            raise ValueError(
                f"{name} is {array.dtype} {list(array.shape)}; the device takes int16 [n, {self.geometry.head_dim}]"
            )
        return array


# -- requests, for callers that submit many at once -----------------------------------------
def map_request(slot: int, pages: Sequence[int]) -> Request:
    """MAP of these page numbers. Raises ValueError for what is no page number."""
    numbers = _numbers("pages", pages, np.size(pages), "for each page")
    return Request(opcode=Opcode.MAP, slot=slot, count=len(numbers), payload=frame.pad(numbers.tobytes()))


def open_state_request(slot: int, mode: StateMode) -> Request:
    """OPEN of a recurrent state. Raises ValueError for a field that its place in the payload cannot hold."""
    return Request(opcode=Opcode.OPEN, slot=slot, flags=Flag.RECURRENT, payload=encode_mode(mode))


def restore_request(slot: int, status: StateStatus) -> Request:
    """RESTORE of a state's registers and factors. Raises ValueError for numbers that their places cannot hold."""
    return Request(opcode=Opcode.RESTORE, slot=slot, payload=encode_status(status))


@dataclass(frozen=True, kw_only=True)
class StateToken:
    """One token of a recurrent state, in the integers of docs/numerics.md, section 8.

    q, k int16 [d], or [2 d] with HALVES; v int16 [channels]; decay: one, or [d] with LANE_DECAY; b as k for a state
    with BONUS; scales uint8 [channels, groups] for one with SUPPLIED.
    """

    q: NDArray[np.int16]
    k: NDArray[np.int16]
    v: NDArray[np.int16]
    decay: int | NDArray[np.int64]
    beta: int
    b: NDArray[np.int16] | None = None
    scales: NDArray[np.uint8] | None = None


def recur_request(slot: int, token: StateToken) -> Request:
    """RECUR with a token. Raises ValueError for vectors that are not int16 and numbers that 32 bits cannot hold."""
    vectors = [("q", token.q), ("k", token.k), *([("b", token.b)] if token.b is not None else []), ("v", token.v)]
    for name, x in vectors:
        if x is None or np.asarray(x).dtype != np.int16 or np.ndim(x) != 1:
            raise ValueError(f"{name} is {np.asarray(x).dtype} {list(np.shape(x))}; the device takes int16, one axis")
    decay = np.asarray(token.decay)
    numbers = np.append(decay.ravel(), token.beta)
    if numbers.dtype.kind not in "iu" or (numbers < 0).any() or (numbers >> 32).any():
        raise ValueError("beta and decay must be whole numbers of 32 bits")
    scalars = [token.beta, 0 if decay.ndim else int(decay), 0, 0]
    parts = [np.array(scalars, "<u4"), *([decay.astype("<u4")] if decay.ndim else [])]
    parts += [np.asarray(x).astype("<i2") for _, x in vectors]
    if token.scales is not None:
        parts.append(np.asarray(token.scales, np.uint8).ravel())
    return Request(opcode=Opcode.RECUR, slot=slot, payload=b"".join(frame.pad(part.tobytes()) for part in parts))


def outputs(response: Response) -> NDArray[np.int32]:
    """O int32 [channels] in the payload of a RECUR response, RECUR_FRACTION bits below the value LSB."""
    return np.frombuffer(response.payload, "<i4").astype(np.int32, copy=False)


def append_request(slot: int, k: NDArray[np.int16], v: NDArray[np.int16], flags: int = 0) -> Request:
    """APPEND of k, v int16 [n, d]. Raises ValueError if their shapes differ."""
    if k.shape != v.shape:
        raise ValueError(f"k is {list(k.shape)} and v is {list(v.shape)}; they must be alike")
    payload = np.stack([k, v], 1).astype("<i2", copy=False).tobytes()
    return Request(opcode=Opcode.APPEND, slot=slot, count=len(k), flags=flags, payload=payload)


def attend_request(slot: int, q: NDArray[np.int16], start: Any, end: Any, shift: int) -> Request:
    """ATTEND of q int16 [n, d] over rows start[i] .. end[i] - 1. Raises ValueError for other bounds."""
    pairs = [_numbers(name, x, len(q), "for each query") for name, x in (("start", start), ("end", end))]
    bounds = frame.pad(np.stack(pairs, -1).tobytes())
    return Request(
        opcode=Opcode.ATTEND, slot=slot, count=len(q), shift=shift,
        payload=bounds + q.astype("<i2", copy=False).tobytes(),
    )


def _numbers(name: str, values: Any, count: int, each: str) -> NDArray[np.uint16]:
    """``count`` numbers as a payload has them. Raises ValueError for others than whole ones from 0 to 65535."""
    array = np.asarray(values)
    whole = array.dtype.kind in "iu" or not array.size
    if not whole or array.shape != (count,) or (array < 0).any() or (array > 0xFFFF).any():
        raise ValueError(f"{name} is {values!r}; it must be {count} whole numbers from 0 to 65535, one {each}")
    return array.astype("<u2")


def attention(response: Response, count: int, head_dim: int) -> Attention:
    """The vectors and block exponents in the payload of an ATTEND response."""
    size = 2 * count * head_dim
    out = np.frombuffer(response.payload, "<i2", count * head_dim).reshape(count, head_dim)
    block = np.frombuffer(response.payload, np.uint8, count, size)
    return Attention(out=out.astype(np.int16, copy=False), block=block.astype(np.int64))
