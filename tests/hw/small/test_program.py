from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from statecell.spec.geometry import Geometry, config
from statecell_hw.small.assembler import MOST, Program, assemble
from statecell_hw.small.isa import ADDRESS_BITS, JUMPS, MODE_BITS, STACK, TABLE_SECTION, Op
from statecell_hw.small.program import INVERSE_BASE, TEXTS, firmware, tables

G = config("icebreaker")
AFRESH = ("reject", "refuse", "main")
"""Labels at which no routine that was called will return."""


def call_depth(program: Program) -> int:
    """Most return addresses that are still needed at a time."""
    ends = {program.symbols[label] for label in AFRESH if label in program.symbols}

    @cache
    def depth(entry: int) -> int:
        seen: set[int] = set()
        ahead, found = [entry], 0
        while ahead:
            at = ahead.pop()
            if at in seen or at >= len(program.code) or (at in ends and at != entry):
                continue
            seen.add(at)
            word = program.code[at]
            op, target = Op(word >> (MODE_BITS + ADDRESS_BITS)), word & (MOST - 1)
            if op is Op.CALL:
                found = max(found, 1 + depth(target))
            elif op in JUMPS:
                ahead.append(target)
            if op not in (Op.JMP, Op.RET):
                ahead.append(at + 1)
        return found

    return max(depth(entry) for entry in {0, *ends})


def test_the_stack_holds_every_call_within_calls() -> None:
    assert call_depth(firmware(G)) <= STACK


def test_a_call_too_deep_is_found() -> None:
    nested = "".join(f"r{n}:\ncall r{n + 1}\nret\n" for n in range(STACK + 1))
    assert call_depth(assemble([f"call r0\nmain:\njmp main\n{nested}r{STACK + 1}:\nret"], {})) == STACK + 2


@pytest.mark.parametrize(
    "g",
    [G, replace(G, slots=64, pages_per_slot=8, page_rows=32, lanes=4, query_bits=12),
     replace(G, slots=4, pages_per_slot=128, page_rows=2), replace(G, rows=16, slots=1, pages_per_slot=1)],
)
def test_the_program_fits_for_every_geometry(g: Geometry) -> None:
    program = firmware(g)
    assert max(len(program.code), len(program.data)) <= MOST
    assert all(0 <= word < 1 << 32 for word in program.data)


def test_tables_hold_powers_and_reciprocals() -> None:
    found = tables()
    assert found[:TABLE_SECTION] == tuple(round(65535 * 2 ** (-i / 256)) for i in range(256))
    bases = [round(2**17 / (1 + i / 128)) for i in range(129)]
    assert [word + INVERSE_BASE for word in found[256:384]] == bases[:128]
    assert list(found[384:]) == [a - b for a, b in pairwise(bases)]
    assert all(0 <= word < 1 << 16 for word in found)


def test_no_text_is_longer_than_a_file_should_be() -> None:
    assert all(text.count("\n") <= 250 for text in TEXTS)
