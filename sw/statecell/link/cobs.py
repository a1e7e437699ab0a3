"""Consistent overhead byte stuffing (Cheshire and Baker, 1999): bytes without zeros, so that a zero can end a frame."""

from __future__ import annotations

from statecell.link.framing import FrameError
from statecell.spec.serial import COBS_BLOCK, DELIMITER


def encode(data: bytes) -> bytes:
    """``data`` without zeros and with the delimiter behind it: 1 + 1 byte more, and 1 for every 254 without a zero."""
    out = bytearray()
    for run in data.split(b"\0"):
        full, rest = divmod(len(run), COBS_BLOCK)
        for at in range(full):
            out.append(COBS_BLOCK + 1)
            out += run[at * COBS_BLOCK : (at + 1) * COBS_BLOCK]
        out.append(rest + 1)
        out += run[full * COBS_BLOCK :]
    # A block of full length at the very end says all; the empty block behind it would be one byte too many.
    last = data.rpartition(b"\0")[2]
    if last and len(last) % COBS_BLOCK == 0:
        out.pop()
    out.append(DELIMITER)
    return bytes(out)


def decode(wire: bytes) -> bytes:
    """The data in ``wire``, the bytes before a delimiter. Raises FrameError if a block is cut short."""
    out = bytearray()
    at = 0
    while at < len(wire):
        code = wire[at]
        block = wire[at + 1 : at + code]
        if len(block) != code - 1:
            raise FrameError("a frame ends inside a block; the link loses data, check the cable and the speed")
        out += block
        at += code
        if code <= COBS_BLOCK and at < len(wire):
            out.append(0)
    return bytes(out)
