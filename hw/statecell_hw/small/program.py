"""The small device's program for a geometry: the firmware's texts with the specification's numbers."""

from __future__ import annotations

from dataclasses import astuple

from statecell.spec import formats, frame
from statecell.spec.commands import CLEAR_COUNTERS, Flag, Info, Opcode, Status
from statecell.spec.geometry import Geometry
from statecell.spec.serial import LEAST_DIVISOR, SerialLink, bit_cycles
from statecell_hw.control.checks import row_blocks
from statecell_hw.control.responder import device_info
from statecell_hw.link.cobs import BYTE_BITS
from statecell_hw.link.uart import FRAME_BITS
from statecell_hw.small.assembler import Program, Value, assemble
from statecell_hw.small.firmware import (
    answers,
    append,
    attend,
    commands,
    counters,
    frames,
    output,
    rawrows,
    rotate,
    scales,
    scores,
    slots,
    softmax,
)  # fmt: skip
from statecell_hw.small.isa import CLOCK_BITS, TABLE_SECTION
from statecell_hw.small.rowstore import NIBBLES, ROW_WORD_BITS

TEXTS = tuple(
    part.TEXT for part in (
        frames, answers, counters, commands, slots, rawrows, append, scales, rotate, attend, scores, softmax, output,
    )
)  # fmt: skip
"""The first begins at reset."""
STORE_WORDS = 32
"""Words of the row memory from one row to the next: half of them the key row's, half the value row's."""
BANK_WORDS = STORE_WORDS // 2
INVERSE_BASE = (1 << formats.INVERSE_BITS - 1) + 1
"""What is taken from the reciprocals in the table so that they have 16 bits."""
PART_BITS = 11
"""Low part of a dividend that is multiplied by itself."""
LOWEST = -(1 << 20)
"""Below every score, in steps of the maximum."""


def firmware(g: Geometry, build_hash: int = 0, link: SerialLink | None = None) -> Program:
    """The program of a device of geometry ``g``, which has `small`; ``build_hash`` and ``link`` are for INFO."""
    constants: dict[str, Value] = {name: int(status) for name, status in Status.__members__.items()}
    constants |= {name: int(opcode) for name, opcode in Opcode.__members__.items() if name != "INFO"}
    constants |= {name: value for name, value in vars(formats).items() if name.isupper() and not name.startswith("_")}
    return assemble(TEXTS, constants | _sizes(g) | _derived(g) | {"INFO": _info(device_info(g, build_hash, link))})


def tables() -> tuple[int, ...]:
    """Both sections of the table memory: powers of two; bases, less INVERSE_BASE, and slopes of the reciprocal."""
    bases, slopes = zip(*formats.INVERSE_TABLE, strict=True)
    found = (*formats.EXP_TABLE, *(base - INVERSE_BASE for base in bases), *slopes)
    assert len(found) == 2 * TABLE_SECTION
    return found


def vector_cycles(g: Geometry) -> int:
    """Most cycles from one vector of an APPEND to the next: what its bytes take on the fastest wire."""
    return g.head_dim * formats.VECTOR_BITS // BYTE_BITS * FRAME_BITS * bit_cycles(g)


def row_cycles(g: Geometry) -> int:
    """Most cycles of a row and query of a pass where the maximum stays: six for each lane of key and value, and the
    rest once a row.
    """
    return 2 * 6 * g.head_dim + 330


def _info(info: Info) -> list[int]:
    return list(astuple(info))


def _sizes(g: Geometry) -> dict[str, Value]:
    return {
        "INFO_OPCODE": int(Opcode.INFO), "INFO_WORDS": len(astuple(device_info(g, 0))), "VERSION": frame.VERSION,
        "CLEAR_COUNTERS": CLEAR_COUNTERS, "LEAST_DIVISOR": LEAST_DIVISOR, "WIDE": int(Flag.WIDE),
        "CLOCK_BITS": CLOCK_BITS,
        "DIM": g.head_dim, "LANES": g.lanes, "SLOTS": g.slots, "SLOT_ROWS": g.slot_rows, "PAGES": g.pages,
        "PAGES_PER_SLOT": g.pages_per_slot, "PAGE_ROWS": g.page_rows, "PAGE_LOG": g.page_rows.bit_length() - 1,
        "STORE_WORDS": STORE_WORDS, "BANK_WORDS": BANK_WORDS, "CODE_WORDS": g.head_dim // NIBBLES,
        "ROW_WORDS": 8 * g.row_bytes // ROW_WORD_BITS, "ROW_BLOCKS": row_blocks(g),
        "VECTOR_BLOCKS": g.head_dim * formats.VECTOR_BITS // 8 // frame.BLOCK,
    }  # fmt: skip


def _derived(g: Geometry) -> dict[str, Value]:
    """Constants that the formulas of docs/numerics.md have for this geometry."""
    step_fraction = formats.SCORE_FRACTION + formats.STEP
    return {
        "ROTATE_SHIFT": g.rotate_shift, "ROTATE_HALF": 1 << g.rotate_shift - 1,
        # quotients of four fraction bits: 2^18 of the reciprocal, 2^-6 of the scale, the error's fraction
        "RECIPROCAL_SHIFT": formats.RECIPROCAL_BITS - formats.SCALE_BIAS - formats.ERROR_FRACTION,
        "LOW_PLANE_MARK": formats.LOW_PLANE << formats.SCALE_MANTISSA,
        "QUERY_FRACTION": g.query_fraction, "QUERY_LIMIT": 1 << g.query_bits - 1,
        "PARTIAL_MAX": (1 << formats.PARTIAL_BITS - 1) - 1, "SCORE_MAX": (1 << formats.SCORE_BITS - 1) - 1,
        "STEP_FRACTION": step_fraction, "STEP_SIZE": 1 << step_fraction, "LOWEST": LOWEST,
        "SCALED_MAX": (1 << formats.OUTPUT_BITS) - 1, "OUTPUT_MAX": (1 << formats.OUTPUT_BITS - 1) - 1,
        "INVERSE_BASE": INVERSE_BASE, "INVERSE_PIECES": 1 << formats.INVERSE_INDEX, "PART_BITS": PART_BITS,
    }  # fmt: skip
