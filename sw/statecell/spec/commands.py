"""Commands, status codes, flags, INFO fields and counters: one table each, used by gateware, driver and documents."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields


class Opcode(enum.IntEnum):
    """Operation of a command frame."""

    INFO = 0x01
    COUNTERS = 0x02
    RESET = 0x03
    CONNECT = 0x04
    OPEN = 0x10
    FREE = 0x11
    MAP = 0x12
    TRUNCATE = 0x13
    APPEND = 0x20
    ATTEND = 0x21
    READ_ROWS = 0x30
    WRITE_ROWS = 0x31
    RECUR = 0x40
    STATE = 0x41
    RESTORE = 0x42
    COMMIT = 0x43


RECURRENT = (Opcode.RECUR, Opcode.STATE, Opcode.RESTORE, Opcode.COMMIT)
"""Commands of devices with recurrent states only."""


def opcodes(states: int) -> tuple[Opcode, ...]:
    """The commands that a device with so many recurrent states knows."""
    return tuple(o for o in Opcode if states or o not in RECURRENT)


class Status(enum.IntEnum):
    """Outcome in a response frame. Anything but OK means that the command changed nothing."""

    OK = 0
    BAD_FRAME = 1
    BAD_VERSION = 2
    BAD_CRC = 3
    BAD_OPCODE = 4
    BAD_LENGTH = 5
    BAD_SLOT = 6
    SLOT_CLOSED = 7
    SLOT_OPEN = 8
    FULL = 9
    BAD_RANGE = 10
    BAD_COUNT = 11
    BAD_PAGE = 12
    BAD_FLAGS = 13
    WRONG_KIND = 14
    BAD_VALUE = 15


STATUS_TEXT: dict[Status, str] = {
    Status.OK: "done",
    Status.BAD_FRAME: "the frame is shorter than a header and a CRC, or longer or shorter than its length field says",
    Status.BAD_VERSION: "the frame's first byte is not this protocol version",
    Status.BAD_CRC: "the CRC-32 does not match the frame",
    Status.BAD_OPCODE: "there is no such command",
    Status.BAD_LENGTH: "the payload length does not fit the command's arguments",
    Status.BAD_SLOT: "the slot number is not below the number of slots",
    Status.SLOT_CLOSED: "the slot is not open",
    Status.SLOT_OPEN: "the slot is open already",
    Status.FULL: "the slot has no room: map pages first, or the slot's page list is full, or the state's log is full: "
                 "COMMIT it first",
    Status.BAD_RANGE: "a row range is empty or reaches beyond the slot's rows",
    Status.BAD_COUNT: "the count is zero or more than the device takes in one command, or the divisor is too small",
    Status.BAD_PAGE: "a page number is not below the number of pages",
    Status.BAD_FLAGS: "a flag is not known to this device, or asks for a format that it was built without",
    Status.WRONG_KIND: "the slot holds a recurrent state and the command is for rows of tokens, or the reverse, or the "
                       "snapshot is of another mode than the slot",
    Status.BAD_VALUE: "a decay, beta, vector element, scale or field of a mode is outside its range",
}


class Flag(enum.IntFlag):
    """Flags of APPEND and OPEN (argument byte 7)."""

    WIDE = 1
    """Store each row in 8 bits, as two nibble planes."""
    ZERO_POINT = 2
    """Zero-point groups; needs a device built with zero points, not with WIDE."""
    RECURRENT = 4
    """Open the slot for a recurrent state; needs a device with states, and a slot number below them."""


FLAG_MASK = Flag.WIDE | Flag.ZERO_POINT
CLEAR_COUNTERS = 1
"""Value of COUNTERS' ``count`` argument that clears the counters after reading them."""


@dataclass(frozen=True)
class Command:
    """One row of the command table.

    ``payload``: the payload of the request. ``answer``: the payload of an OK response. ``value``: what the 32-bit
    ``value`` of an OK response holds. A failed command answers without payload, ``value`` 0.
    """

    opcode: Opcode
    summary: str
    arguments: str
    payload: str
    answer: str
    value: str


COMMANDS: tuple[Command, ...] = (
    Command(Opcode.INFO, "geometry, limits, clock, build hash, fingerprint", "-", "-", "INFO fields, u32 each", "0"),
    Command(Opcode.COUNTERS, "read the counters; count = 1 clears them", "count", "-", "counters, u64 each", "0"),
    Command(Opcode.RESET, "close every slot and clear the counters", "-", "-", "-", "0"),
    Command(Opcode.CONNECT, "serial link: begin or keep a session, set the bit rate once this answer is out",
            "slot: session that runs; first: session from now on; count: divisor, 0 keeps it", "-", "-",
            "session that runs now, 0 for none; another than `first`: `slot` was wrong and nothing was done"),
    Command(Opcode.OPEN, "open a slot: no pages, no rows; with RECURRENT for an empty recurrent state", "flags",
            "with RECURRENT the block of the state's mode", "-", "0"),
    Command(Opcode.FREE, "close a slot", "-", "-", "-", "0"),
    Command(Opcode.MAP, "append pages to the slot's page list", "count: pages",
            "count page numbers, u16, padded to 16 bytes", "-", "pages mapped"),
    Command(Opcode.TRUNCATE, "keep the first count rows; the pages stay mapped", "count: rows", "-", "-", "rows held"),
    Command(Opcode.APPEND, "rotate, quantise and store count tokens", "count: tokens; flags",
            "per token the key vector, then the value vector, i16", "-", "rows held"),
    Command(Opcode.ATTEND, "attention of count queries over ranges of the slot's rows", "count: queries; shift",
            "per query start and end row, u16 each, padded to 16 bytes; then the query vectors, i16",
            "per query the output vector, i16; then one u8 block exponent per query, padded to 16 bytes", "0"),
    Command(Opcode.READ_ROWS, "raw stored rows from row `first`", "count: rows; first", "-",
            "per row the raw key row, then the raw value row", "0"),
    Command(Opcode.WRITE_ROWS, "append raw rows", "count: rows", "as READ_ROWS answers", "-", "rows held"),
    Command(Opcode.RECUR, "one token of a recurrent state: read, decay, update, write back or log", "-",
            "a block with beta and decay, u32 each; with LANE_DECAY the lanes' decays, u32; q, k and, with BONUS, b, "
            "i16; v of the channels, i16; with SUPPLIED scale bytes, channel by channel; each padded to 16 bytes",
            "the channels' outputs, i32", "0"),
    Command(Opcode.STATE, "all of a recurrent state but its rows", "-", "-",
            "the mode block, with the noise register as its seed; state registers, u64 each; a block with the factor "
            "as u32 or, with LANE_DECAY, the lanes' factors, u32; with a log a block for each of its tokens with what "
            "the factor had lost, u32", "0"),
    Command(Opcode.RESTORE, "set a recurrent state, all but its rows, to what STATE answered", "-",
            "as STATE answers, of a slot of the same mode; first_page may differ and changes nothing", "-", "0"),
    Command(Opcode.COMMIT, "add the logged tokens of a recurrent state to its rows, and empty the log", "-", "-", "-",
            "0"),
)
"""Every command; docs/protocol.md is generated from it."""


@dataclass(frozen=True, kw_only=True)
class Info:
    """Answer of INFO, one u32 per field in this order.

    ``features``: bit 0: rows carry zero points; bits 16 up: ``states``, the slots that can hold a recurrent state. The
    last four describe a serial link and are 0 without one: see spec.serial.SerialLink, and ``bit_cycles`` is the
    fewest clock cycles of one bit, so that the link goes up to ``clock_hz / bit_cycles`` baud.
    """

    version: int
    fingerprint: int
    build_low: int
    build_high: int
    head_dim: int
    rows: int
    lanes: int
    tiles: int
    group: int
    page_rows: int
    slots: int
    pages_per_slot: int
    link_bytes: int
    query_bits: int
    features: int
    clock_hz: int
    request_bytes: int
    answer_bytes: int
    answers: int
    bit_cycles: int


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Answer of COUNTERS, one u64 per field in this order, counted since reset or the last clear.

    ``cycles`` clock cycles; ``key_rows`` and ``value_rows`` rows read from each bank by passes; ``rows_written`` rows
    written, each into one bank; ``link_in`` and ``link_out`` words taken from and given to the link;
    ``stalls`` cycles in which a pass was waiting to start although its queries were ready.
    """

    cycles: int
    key_rows: int
    value_rows: int
    rows_written: int
    link_in: int
    link_out: int
    stalls: int
    passes: int


@dataclass(frozen=True, kw_only=True)
class StateRegisters:
    """Registers in the answer of STATE, one u64 per field in this order.

    ``stored``: 1 if the rows hold a state; until a token has been written they count as 0, whatever they hold.
    ``skipped``: tokens that wrote nothing because they changed nothing. ``rescaled``: groups of rows that took a new
    scale where it is held. ``energy``: of the rows, see docs/numerics.md, 8.1. ``logged``: tokens in the log. ``lost``:
    octaves that the factor has lost since the rows were written; 8.2.
    """

    stored: int
    skipped: int
    rescaled: int
    energy: int
    logged: int
    lost: int


class StateFlag(enum.IntFlag):
    """Flags in the mode block of OPEN."""

    DELTA = 1
    """Delta rule."""
    WIDE = 2
    """Two nibble planes."""
    RESIDUAL = 4
    """The read-out sees the high plane only; with WIDE."""
    FRESH = 8
    """A new scale at every write-back."""
    SUPPLIED = 16
    """Scales come with the token; not with FRESH."""
    STOCHASTIC = 32
    """Stochastic rounding."""
    ROTATE = 64
    """q and k are rotated."""
    LANE_DECAY = 128
    """A decay per lane; not with ROTATE."""
    DECAY_FIRST = 256
    """The read-out sees the decayed state."""
    BONUS = 512
    """Tokens bring b."""
    HALVES = 1024
    """Keys have two halves of head_dim lanes, and a channel two rows; not with LANE_DECAY, SUPPLIED or a log."""


@dataclass(frozen=True, kw_only=True)
class StateMode:
    """Payload of OPEN with RECURRENT, first block of STATE and RESTORE: these fields, u16 each but ``seed``, u32.

    ``feedback``: sixteenths of the low plane that an update takes, 0 to 16, 16 unless RESIDUAL. ``shift``: state shift,
    0 to 15. ``channels``: value channels, a multiple of 8 from 16 to twice head_dim. ``first_page``: the state lies in
    the whole pages from this one on, ``channels`` rows of both banks, half as many with one plane, twice as many with
    HALVES, and two more for each token of a log. ``interval``: tokens from one write-back to the next, 1 to 128; more
    than 1 keep a log, which needs as many channels as lanes and none of LANE_DECAY, SUPPLIED and HALVES. ``seed``:
    noise register, not 0.
    """

    flags: StateFlag
    feedback: int
    shift: int
    channels: int
    first_page: int
    interval: int = 1
    seed: int = 1


STATE_MODE_BITS = {
    "flags": 16, "feedback": 16, "shift": 16, "channels": 16, "first_page": 16, "interval": 16, "seed": 32,
}
"""Width of the fields of StateMode."""
STATE_FIELDS = tuple(f.name for f in fields(StateRegisters))
INFO_FIELDS = tuple(f.name for f in fields(Info))
COUNTER_FIELDS = tuple(f.name for f in fields(Counters))
