"""Instructions of the small device's machine: their fields, and what each does to the machine."""

from __future__ import annotations

import enum

WORD_BITS = 32
"""Accumulator and data words, signed."""
FACTOR_BITS = 16
"""The operand of a multiplication, signed."""
POINTERS = 4
COUNT_BITS = 8
"""The loop counter."""
STACK = 4
"""Calls within calls."""
ADDRESS_BITS = 11
"""Addresses of instructions and of data words."""
CLOCK_BITS = 24
"""The cycle counter that a program reads; it wraps."""
TABLE_SECTION = 256
"""Words of one section of the table memory."""


class Op(enum.IntEnum):
    """A is the accumulator, M the operand. Those marked 3 take three cycles; a jump that is taken takes two.

    The first eight are those with an operand, so that three bits say what the arithmetic does.
    """

    LD = 0
    """A = M."""
    ADD = 1
    """A = A + M."""
    SUB = 2
    """A = A - M."""
    AND = 3
    """A = A & M."""
    MIN = 4
    """A = min(A, M)."""
    MAX = 5
    """A = max(A, M)."""
    ASR = 6
    """A = A >> M mod 32, arithmetic."""
    MUL = 7
    """A = A x the low FACTOR_BITS of M, modulo 2^32; 3."""
    TAB = 8
    """A = table[section, A mod TABLE_SECTION]; 3."""
    NOP = 9
    ST = 10
    """Data word = A."""
    PTR = 11
    """Pointer = A."""
    SET = 12
    """Pointer = a constant."""
    CNT = 13
    """Counter = a constant."""
    LOOP = 14
    """Counter = counter - 1; jump unless it is 0 then."""
    JMP = 15
    JZ = 16
    """Jump if A = 0."""
    JNZ = 17
    JN = 18
    """Jump if A < 0."""
    JNN = 19
    JNI = 20
    """Jump if no word waits at the input."""
    JNO = 21
    """Jump if a word still waits at the output."""
    CALL = 22
    RET = 23
    OUT = 24
    """What the bits of the argument say, with A: see Strobe."""


OP_BITS = max(Op).bit_length()
SLOW = (Op.MUL, Op.TAB)
SLOW_CYCLES = 3
JUMPS = (Op.LOOP, Op.JMP, Op.JZ, Op.JNZ, Op.JN, Op.JNN, Op.JNI, Op.JNO, Op.CALL)
"""Those whose argument is an address of the program."""
READERS = (Op.LD, Op.ADD, Op.SUB, Op.AND, Op.MIN, Op.MAX, Op.ASR, Op.MUL)
"""Those that have an operand M."""


class Mode(enum.IntEnum):
    """Where M comes from, or where ST goes; for PTR and SET this field is the pointer's number."""

    DIRECT = 0
    """Data word at the argument."""
    AT = 1
    """Data word at a pointer, whose number is the argument."""
    NEXT = 2
    """The same, and the pointer goes on by one."""
    CONST = 3
    """The argument, signed."""
    NIBBLE = 4
    """Next four bits of the row memory, signed."""
    ROW = 5
    """Word of the row memory, unsigned; on to the next."""
    PORT = 6
    """What the argument names: see Port."""


MODE_BITS = max(Mode).bit_length()


class Port(enum.IntEnum):
    """Inputs of the machine, as they are in the cycle before the instruction is carried out."""

    WORD = 0
    """The word at the input, its `last` flag above it; takes it."""
    CRC = 1
    CLOCK = 2
    SESSION = 3


class Strobe(enum.IntFlag):
    """Outputs of the machine, any of them at once."""

    ROW = 1
    """Row memory address = A."""
    WRITE = 2
    """Row memory word = A; on to the next."""
    CRC = 4
    """The CRC takes a word; the second instruction after it finds it in Port.CRC."""
    CLEAR = 8
    """The CRC begins anew."""
    PUT = 16
    """Word to the output, which must be free."""
    LAST = 32
    """With PUT: it ends the frame."""
    ACCEPT = 64
    """A frame was read whole and good."""
    REJECT = 128
    """A frame could not be read."""
    CONNECT = 256
    """With ACCEPT: a CONNECT is carried out, for session A mod 2^16 and bit length A >> 16."""


INSTRUCTION_BITS = OP_BITS + MODE_BITS + ADDRESS_BITS


def encode(op: Op, mode: int = 0, argument: int = 0) -> int:
    """The instruction as a number: argument in the low bits, then the mode, then the operation."""
    return int(op) << (MODE_BITS + ADDRESS_BITS) | mode << ADDRESS_BITS | argument & ((1 << ADDRESS_BITS) - 1)
