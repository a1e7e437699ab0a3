"""A recurrent state outside of the device: what STATE answers and RESTORE takes, and the rows beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from statecell.spec import frame
from statecell.spec.commands import STATE_FIELDS, STATE_MODE_BITS, StateFlag, StateMode, StateRegisters


@dataclass(frozen=True, kw_only=True)
class StateStatus:
    """All of a state but its rows: ``mode`` with the noise register as its seed, ``registers``, ``factors``, uint32
    [1], or [d] with LANE_DECAY, and ``ages``, uint32 [interval], or [0] without a log: octaves that the factor had
    lost at each token of the log, of which only the logged ones mean something.
    """

    mode: StateMode
    registers: StateRegisters
    factors: NDArray[np.uint32]
    ages: NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True)
class StateSnapshot:
    """A whole state: ``status``, and the raw rows of both banks, geometry.row_bytes each."""

    status: StateStatus
    keys: bytes
    values: bytes


def encode_mode(mode: StateMode) -> bytes:
    """The block of a mode. Raises ValueError for a field that its place in the block cannot hold."""
    payload, place = 0, 0
    for name, bits in STATE_MODE_BITS.items():
        value = int(getattr(mode, name))
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name} is {value}; it must be 0 to {(1 << bits) - 1}")
        payload |= value << place
        place += bits
    return payload.to_bytes(frame.BLOCK, "little")


def encode_status(status: StateStatus) -> bytes:
    """The payload of RESTORE. Raises ValueError for numbers that their places cannot hold."""
    registers = _numbers("registers", astuple(status.registers), "<u8")
    ages = b"".join(frame.pad(_numbers("ages", [age], "<u4")) for age in status.ages.tolist())
    return encode_mode(status.mode) + registers + frame.pad(_numbers("factors", status.factors.tolist(), "<u4")) + ages


def decode_status(payload: bytes) -> StateStatus:
    """What a payload of STATE says."""
    block, place = int.from_bytes(payload[:frame.BLOCK], "little"), 0
    fields: dict[str, int] = {}
    for name, bits in STATE_MODE_BITS.items():
        fields[name] = block >> place & (1 << bits) - 1
        place += bits
    fields["flags"] = flags = StateFlag(fields["flags"])
    registers = np.frombuffer(payload, "<u8", len(STATE_FIELDS), frame.BLOCK)
    numbers = np.frombuffer(payload, "<u4", -1, frame.BLOCK + 8 * len(STATE_FIELDS)).astype(np.uint32)
    lanes = bool(flags & StateFlag.LANE_DECAY)
    return StateStatus(
        mode=StateMode(**fields),  # type: ignore[arg-type]  # flags are a StateFlag
        registers=StateRegisters(**dict(zip(STATE_FIELDS, map(int, registers), strict=True))),
        factors=numbers if lanes else numbers[:1], ages=numbers[:0] if lanes else numbers[4::4])


def same_mode(a: StateMode, b: StateMode) -> bool:
    """Whether a snapshot of the one fits a slot of the other: alike but for the place and the noise register."""
    return replace(a, first_page=0, seed=1) == replace(b, first_page=0, seed=1)


def state_rows(mode: StateMode) -> int:
    """Rows that a state and its log take in each bank."""
    rows = mode.channels if mode.flags & StateFlag.WIDE else mode.channels // 2
    rows *= 2 if mode.flags & StateFlag.HALVES else 1
    return rows + (2 * mode.interval if mode.interval > 1 else 0)


def state_pages(mode: StateMode, page_rows: int) -> range:
    """Pages that a state lies in."""
    return range(mode.first_page, mode.first_page - (-state_rows(mode) // page_rows))


def _numbers(name: str, values: Sequence[int], kind: str) -> bytes:
    if not all(0 <= value <= np.iinfo(kind).max for value in values):
        raise ValueError(f"{name} are {list(values)}; each must be 0 to {np.iinfo(kind).max}")
    return np.array(values, kind).tobytes()
