"""Frame layout, shared by requests and responses; all integers little-endian.

A frame is a 16-byte header, a payload of whole 16-byte blocks, and a CRC-32 (zlib's) over both, in 4 bytes padded with
zeros to a whole number of link words.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

VERSION = 0xC1
"""First byte of every frame: mark and protocol version."""
RESPONSE = 0x80
"""Set in the opcode byte of a response."""
BLOCK = 16
"""Bytes of the header and of a payload block."""
CRC_BYTES = 4
MAX_BLOCKS = (1 << 16) - 1
SEQUENCES = 1 << 15
"""Requests are numbered 0 to SEQUENCES - 1 and again from 0."""


@dataclass(frozen=True)
class Field:
    """One header field: byte offset and width in bytes."""

    name: str
    offset: int
    width: int
    meaning: str


REQUEST_HEADER: tuple[Field, ...] = (
    Field("version", 0, 1, "0xC1"),
    Field("opcode", 1, 1, "command"),
    Field("sequence", 2, 2, "0 to 0x7FFF, one more for each request; echoed in the response"),
    Field("slot", 4, 2, "slot number; 0 where the command has none; session that runs, for CONNECT"),
    Field("blocks", 6, 2, "payload length in blocks of 16 bytes"),
    Field("count", 8, 4, "tokens, queries, rows or pages; divisor of CONNECT"),
    Field("first", 12, 2, "first row of READ_ROWS; session from now on, for CONNECT"),
    Field("shift", 14, 1, "score shift of ATTEND, 0..63"),
    Field("flags", 15, 1, "flags of APPEND and OPEN"),
)
RESPONSE_HEADER: tuple[Field, ...] = (
    Field("version", 0, 1, "0xC1"),
    Field("opcode", 1, 1, "command | 0x80"),
    Field("sequence", 2, 2, "of the request; 0xFFFF if its frame could not be read"),
    Field("slot", 4, 2, "of the request"),
    Field("blocks", 6, 2, "payload length in blocks of 16 bytes"),
    Field("status", 8, 1, "outcome"),
    Field("reserved", 9, 3, "0"),
    Field("value", 12, 4, "see the command table"),
)


def pack_header(layout: tuple[Field, ...], **values: int) -> bytes:
    """A 16-byte header; fields not named are 0. Raises OverflowError if a value does not fit its field."""
    header = bytearray(BLOCK)
    for field in layout:
        header[field.offset:field.offset + field.width] = values.get(field.name, 0).to_bytes(field.width, "little")
    return bytes(header)


def unpack_header(layout: tuple[Field, ...], header: bytes) -> dict[str, int]:
    """The fields of a 16-byte header by name."""
    return {f.name: int.from_bytes(header[f.offset:f.offset + f.width], "little") for f in layout}


def trailer_bytes(link_bytes: int) -> int:
    """Bytes of the trailer: the CRC padded to whole link words."""
    return max(CRC_BYTES, link_bytes)


def seal(body: bytes, link_bytes: int) -> bytes:
    """``body`` (header and payload) with its trailer."""
    return body + zlib.crc32(body).to_bytes(CRC_BYTES, "little").ljust(trailer_bytes(link_bytes), b"\0")


def pad(data: bytes) -> bytes:
    """``data`` padded with zeros to whole blocks."""
    return data + bytes(-len(data) % BLOCK)
