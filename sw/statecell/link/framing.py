"""Request frames out of commands, responses out of frames; layouts from statecell.spec."""

from __future__ import annotations

import operator
import zlib
from dataclasses import dataclass

from statecell.link.errors import LinkError, SpecificationMismatch
from statecell.spec import frame
from statecell.spec.commands import INFO_FIELDS, STATUS_TEXT, Info, Opcode, Status
from statecell.spec.fingerprint import fingerprint

UNKNOWN_SEQUENCE = 0xFFFF
"""Sequence number in the answer to a frame whose header could not be read; requests never use it."""


class FrameError(LinkError):
    """A response frame is damaged, or answers another request."""


MOST = {field.name: (1 << (8 * field.width)) - 1 for field in frame.REQUEST_HEADER}
"""The largest number of each field of a request's header."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One command; ``payload`` is a whole number of 16-byte blocks.

    Raises ValueError for a number that its field of the frame cannot hold.
    """

    opcode: Opcode
    slot: int = 0
    count: int = 0
    first: int = 0
    shift: int = 0
    flags: int = 0
    payload: bytes = b""

    def __post_init__(self) -> None:
        for name in ("slot", "count", "first", "shift", "flags"):
            value, most = getattr(self, name), MOST[name]
            try:
                number = operator.index(value)  # numpy's integers, too
            except TypeError:
                number = -1
            if not 0 <= number <= most:
                raise ValueError(f"{name} is {value!r}; it must be a whole number from 0 to {most}")
            object.__setattr__(self, name, number)

    def encode(self, sequence: int, link_bytes: int) -> bytes:
        """The frame with this sequence number for a link of ``link_bytes`` a word.

        Raises ValueError if the payload is not whole blocks or longer than a frame can say.
        """
        blocks, rest = divmod(len(self.payload), frame.BLOCK)
        if rest or blocks > frame.MAX_BLOCKS:
            raise ValueError(f"a payload of {len(self.payload)} bytes is not 0 to {frame.MAX_BLOCKS} blocks of 16")
        header = frame.pack_header(
            frame.REQUEST_HEADER, version=frame.VERSION, opcode=self.opcode, sequence=sequence, slot=self.slot,
            blocks=blocks, count=self.count, first=self.first, shift=self.shift, flags=self.flags,
        )
        return frame.seal(header + self.payload, link_bytes)


@dataclass(frozen=True, kw_only=True)
class Response:
    """Outcome of one command."""

    opcode: int
    sequence: int
    slot: int
    status: Status
    value: int
    payload: bytes


def decode(data: bytes, link_bytes: int) -> Response:
    """The response in one frame.

    Raises FrameError if the frame is short, long, damaged, of another version, or not a response.
    """
    trailer = frame.trailer_bytes(link_bytes)
    if len(data) < frame.BLOCK + trailer:
        raise FrameError(f"a response of {len(data)} bytes is shorter than a header and a CRC; reset the device")
    body, crc = data[:-trailer], data[-trailer:][: frame.CRC_BYTES]
    if zlib.crc32(body) != int.from_bytes(crc, "little"):
        raise FrameError("a response's CRC-32 does not match it; the link damages data, check the cable and the speed")
    header = frame.unpack_header(frame.RESPONSE_HEADER, body[: frame.BLOCK])
    if header["version"] != frame.VERSION:
        raise FrameError(
            f"a response begins with {header['version']:#04x}, protocol version {frame.VERSION:#04x} was expected; "
            "driver and device must be of the same release"
        )
    if not header["opcode"] & frame.RESPONSE or header["blocks"] * frame.BLOCK != len(body) - frame.BLOCK:
        raise FrameError("a response's header does not describe its frame; reset the device")
    if header["status"] not in {int(s) for s in Status}:
        raise FrameError(f"a response has the unknown status {header['status']}; driver and device differ in release")
    return Response(
        opcode=header["opcode"] & ~frame.RESPONSE, sequence=header["sequence"], slot=header["slot"],
        status=Status(header["status"]), value=header["value"], payload=body[frame.BLOCK:],
    )


def describe(status: Status) -> str:
    """The sentence of a status code."""
    return STATUS_TEXT[status]


def info_of(payload: bytes, found: str, remedy: str) -> Info:
    """The fields in the payload of an INFO response.

    Raises SpecificationMismatch, which begins with `found` and ends with `remedy`, if the device was made from another
    specification than this driver.
    """
    words = [int.from_bytes(payload[at : at + 4], "little") for at in range(0, len(payload), 4)]
    if len(words) != len(INFO_FIELDS) or words[1] != fingerprint():
        theirs = f"{words[1]:#010x}" if len(words) > 1 else "none"
        raise SpecificationMismatch(f"{found} {theirs}, this driver's is {fingerprint():#010x}; {remedy}")
    return Info(**dict(zip(INFO_FIELDS, words, strict=True)))
