from __future__ import annotations

import pytest

from statecell_hw.small.assembler import MOST, AssemblyError, assemble
from statecell_hw.small.isa import ADDRESS_BITS, MODE_BITS, Mode, Op, Port, Strobe, encode

HEAD = ".var v w\n.array x 4\n.data t NUMBERS\n"


def code(text: str) -> tuple[int, ...]:
    return assemble([HEAD + text], {"NUMBERS": [7, -1], "SEVEN": 7}).code


def operations(text: str) -> list[Op]:
    return [Op(word >> (MODE_BITS + ADDRESS_BITS)) for word in code(text)]


def test_every_way_to_write_an_operand() -> None:
    found = code("ld v\nld x + 1\nld #-SEVEN\nld [p2]\nld [p3]+\nld nib\nld row\nld word\nst v\nld crc\nst w\nst [p1]+")
    assert found == (
        encode(Op.LD, Mode.DIRECT, 0), encode(Op.LD, Mode.DIRECT, 3), encode(Op.LD, Mode.CONST, -7),
        encode(Op.LD, Mode.AT, 2), encode(Op.LD, Mode.NEXT, 3), encode(Op.LD, Mode.NIBBLE),
        encode(Op.NOP), encode(Op.LD, Mode.ROW), encode(Op.LD, Mode.PORT, Port.WORD), encode(Op.ST),
        encode(Op.LD, Mode.PORT, Port.CRC),
        encode(Op.ST, Mode.DIRECT, 1), encode(Op.ST, Mode.NEXT, 1),
    )  # fmt: skip


def test_pointers_counter_strobes_and_labels() -> None:
    found = code("again:\nset p2, x + 2\nptr p1\ncnt #SEVEN\ntab #1\nout put, last\nloop again\njmp end\nend:\nret")
    assert found == (
        encode(Op.SET, 2, 4), encode(Op.PTR, 1), encode(Op.CNT, 0, 7), encode(Op.TAB, 0, 256),
        encode(Op.OUT, 0, Strobe.PUT | Strobe.LAST), encode(Op.LOOP, 0, 0), encode(Op.JMP, 0, 7), encode(Op.RET),
    )  # fmt: skip


def test_literals_and_data_have_their_words() -> None:
    program = assemble([HEAD, "ld =70000\nadd =70000\nsub =-5"], {"NUMBERS": [7, -1]})
    assert program.data == (0, 0, 0, 0, 0, 0, 7, 2**32 - 1, 70000, 2**32 - 5)
    assert program.symbols["t"] == 6


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        ("st v\nld v", True), ("st v\nld w", False), ("st v\nld [p0]", False), ("st [p0]\nld v", False),
        ("st [p0]+\nld [p1]", True), ("st x\nld [p1]", True), ("st [p0]\nld x + 1", True), ("st v\nst v", False),
        ("ptr p0\nld [p0]", True), ("ptr p0\nst [p1]", True), ("ptr p0\nset p1, x", True), ("ptr p0\nld v", False),
        ("out row\nld nib", True), ("out row\nld v", False), ("mul nib\nadd nib", True), ("out crc\nld crc", True),
        ("out put\nld crc", False), ("ld word\nld word", True),
    ],
)  # fmt: skip
def test_what_may_not_follow_at_once_gets_a_gap(text: str, gap: bool) -> None:
    assert (Op.NOP in operations(text)) == gap
    assert Op.NOP not in operations(text.replace("\n", "\njmp here\nhere:\n"))  # a jump is gap enough


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("frobnicate v", "FROBNICATE"), ("ld nothing", "nothing"), ("ld #5000", "write =5000"), ("jmp away", "away"),
        (".var v", "defined already"), ("set p0, v", "array only"), ("out shout", "SHOUT"),
        ("ld NUMBERS", "one number"), (".vector q 3", "no directive"), (f".array big {MOST}", "is the most"),
        ("ld 1 +", "line 4"), ("st =9", "st =9"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named(text: str, reason: str) -> None:
    with pytest.raises(AssemblyError, match=reason):
        code(text)
