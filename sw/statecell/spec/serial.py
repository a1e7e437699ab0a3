"""The serial link: what gateware and driver must agree on beside the frames themselves.

A frame goes over the wire without the zeros that pad its CRC to a link word, encoded with consistent overhead byte
stuffing (COBS), and is followed by one zero byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from statecell.spec import formats, frame
from statecell.spec.commands import COUNTER_FIELDS, INFO_FIELDS, Opcode
from statecell.spec.geometry import Geometry, GeometryError

START_BAUD = 115_200
"""Bit rate after reset, after a break, and after SILENCE_S without a good frame."""
BIT_CYCLES = 8
"""Fewest clock cycles of one bit."""
FRACTION_BITS = 4
"""A divisor is the length of a bit in clock cycles with this many bits behind the binary point."""
DIVISOR_BITS = 16
LEAST_DIVISOR = BIT_CYCLES << FRACTION_BITS
BREAK_BITS = 16
"""A line that is low for so many bits is a break. A byte never is, a zero byte at half the rate is."""
SILENCE_S = 10
"""Seconds without a good frame after which the device returns to START_BAUD."""
DELIMITER = 0
COBS_BLOCK = 254
"""Most bytes behind one code byte."""
SESSION_BITS = 16
SHORTEST = frame.BLOCK + frame.CRC_BYTES
"""Bytes of a frame without payload, before encoding."""


@dataclass(frozen=True, kw_only=True)
class SerialLink:
    """Buffers of a device on a serial link; INFO tells them to the driver, which never sends what does not fit.

    Parameters
    ----------
    request_bytes: bytes on the wire that the device takes while it is busy; a power of two.
    answer_bytes: memory of the answers that can be repeated; a power of two.
    answers: most answers kept; one less than a power of two.
    """

    request_bytes: int = 2048
    answer_bytes: int = 2048
    answers: int = 15

    def __post_init__(self) -> None:
        for name, least in (("request_bytes", 64), ("answer_bytes", 128)):
            value = getattr(self, name)
            if not least <= value <= 1 << 16 or value & (value - 1):
                raise GeometryError(f"{name} is {value}; it must be a power of two, {least} to 65536")
        if not 1 <= self.answers <= 255 or self.answers & (self.answers + 1):
            raise GeometryError(f"answers is {self.answers}; it must be one less than a power of two, 1 to 255")


def divisor(clock_hz: int, baud: int) -> int:
    """The divisor nearest to a bit rate. Raises ValueError where the clock cannot give it."""
    value = ((clock_hz << FRACTION_BITS) + baud // 2) // baud
    if not LEAST_DIVISOR <= value < 1 << DIVISOR_BITS:
        raise ValueError(f"a clock of {clock_hz} Hz cannot give {baud} baud: a bit takes 8 to 4095 cycles")
    return value


def bit_cycles(g: Geometry) -> int:
    """Fewest clock cycles of one bit at which a device takes requests of any length: a small one stores more slowly."""
    return 2 * BIT_CYCLES if g.small else BIT_CYCLES


def answer_bytes(opcode: int, count: int, g: Geometry) -> int:
    """Most bytes of the answer to a command, before encoding; what the answer's payload is stands in the commands."""
    blocks = {
        Opcode.INFO: len(INFO_FIELDS) * 4 // frame.BLOCK,
        Opcode.COUNTERS: len(COUNTER_FIELDS) * 8 // frame.BLOCK,
        Opcode.ATTEND: count * g.head_dim * formats.VECTOR_BITS // 8 // frame.BLOCK + 1,
        Opcode.READ_ROWS: count * 2 * g.row_bytes // frame.BLOCK,
    }
    return SHORTEST + frame.BLOCK * blocks.get(Opcode(opcode), 0) if opcode in set(Opcode) else SHORTEST
