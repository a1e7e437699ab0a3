"""The machine against the interpreter on random programs, and what its inputs and outputs do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from statecell_hw.small import assembler
from statecell_hw.small.assembler import assemble
from statecell_hw.small.isa import SLOW_CYCLES, STACK, TABLE_SECTION, Strobe
from statecell_hw.small.machine import Machine
from tests.hw.small.interpreter import Interpreter
from tests.hw.streams import simulate

TABLES = tuple(random.Random(1).getrandbits(16) for _ in range(2 * TABLE_SECTION))
NIBBLE, ROW, CRC, SESSION = -3, 0x8123, 0xDEADBEEF, 0x4567
HEAD = """
.var v0 v1 v2
.array x 64
.data y NUMBERS
.array z 64
"""
ARRAYS = ("x", "y", "z")
MOVES = 40  # most uses of a pointer between two settings, so that it stays within its array
END = "out connect\nstop:\njmp stop\n"


def word(index: int) -> int:
    """The words at the input."""
    return (index * 40503 + 11) & 0x1FFFF


class Writer:
    """Random program text: blocks that use every instruction, in loops and calls, with jumps forward."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.labels = 0

    def label(self) -> str:
        self.labels += 1
        return f"label_{self.labels}"

    def operand(self) -> str:
        rng = self.rng
        return rng.choice([
            f"v{rng.randrange(3)}", f"{rng.choice(ARRAYS)} + {rng.randrange(64)}", f"#{rng.randrange(-1024, 1024)}",
            f"={rng.getrandbits(32) - (1 << 31)}", f"[p{rng.randrange(4)}]", f"[p{rng.randrange(4)}]+", "nib", "row",
            "word", "crc", "session",
        ])  # fmt: skip

    def line(self) -> str:
        rng = self.rng
        readers = ("ld", "add", "sub", "and", "min", "max", "asr", "mul")
        name = rng.choice([*readers, "st", "st", "tab", "out", "skip", "point"])
        if name == "st":
            target = rng.choice([f"v{rng.randrange(3)}", f"z + {rng.randrange(64)}", "[p0]+", "[p1]", "[p2]+"])
            return f"st {target}"
        if name == "tab":
            return f"tab #{rng.randrange(2)}"
        if name == "out":
            return f"out {rng.choice(['put', 'put, crc', 'row', 'write', 'clear, last', 'accept', 'reject'])}"
        if name == "skip":
            label = self.label()
            jump = rng.choice(["jz", "jnz", "jn", "jnn", "jni", "jno", "jmp"])
            return f"{jump} {label}\nld {self.operand()}\n{label}:"
        if name == "point":
            return f"ld #{rng.choice(ARRAYS)}\nptr p{rng.randrange(4)}"
        return f"{name} {self.operand()}"

    def block(self, lines: int) -> str:
        setting = [f"set p{number}, {self.rng.choice(ARRAYS)}" for number in range(4)]
        return "\n".join(setting + [self.line() for _ in range(lines)] + ["out put"])

    def text(self) -> str:
        loop, routine, inner, after = (self.label() for _ in range(4))
        return "\n".join([
            self.block(MOVES // 2), f"cnt #3\n{loop}:", self.block(MOVES // 2), f"loop {loop}", f"call {routine}",
            self.block(MOVES // 2), END, f"{routine}:", self.block(6), f"call {inner}", self.block(6), "ret",
            f"{inner}:", self.block(4), f"jmp {after}\n{after}:", "ret",
        ])  # fmt: skip


def run(text: str, *, most: int = 10_000) -> tuple[list[tuple[int, int]], list[int], int]:
    """Trace of strobes and what was read of nibbles, row words and input words, and the cycles that it took."""
    program = assemble([HEAD, text], {"NUMBERS": [random.Random(2).getrandbits(32) for _ in range(64)]})
    dut = Machine(program, TABLES)
    trace: list[tuple[int, int]] = []
    taken = [0, 0, 0]
    strobes = (dut.next_nibble, dut.next_row, dut.word_take)

    async def bench(ctx: Any) -> None:
        for signal, value in ((dut.nibble, NIBBLE), (dut.row, ROW), (dut.crc, CRC), (dut.session, SESSION)):
            ctx.set(signal, value)
        ctx.set(dut.free, 1)
        ctx.set(dut.word_valid, 1)
        ctx.set(dut.word, word(0))
        while not trace or not trace[-1][0] & Strobe.CONNECT:
            strobe = ctx.get(dut.strobe)
            if strobe:
                trace.append((strobe, ctx.get(dut.a)))
            for index, signal in enumerate(strobes):
                taken[index] += ctx.get(signal)
            await ctx.tick()
            ctx.set(dut.word, word(taken[2]))

    cycles = simulate(dut, bench, max_cycles=most)
    expected = Interpreter(program, TABLES, NIBBLE, ROW, CRC, SESSION, word)
    expected.run()
    assert trace == expected.trace
    assert taken == expected.taken
    return trace, taken, cycles


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_do_what_the_instructions_say(seed: int) -> None:
    trace, taken, _ = run(Writer(seed).text())
    assert len(trace) > 6 and sum(taken) > 3


def test_without_gaps_a_program_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler, "_hazard", lambda first, then: False)
    with pytest.raises(AssertionError):
        for seed in range(12):
            run(Writer(seed).text())


@pytest.mark.parametrize(
    ("lines", "cost"),
    [
        ("add #1", 1), ("st v0", 1), ("mul #3", SLOW_CYCLES), ("tab #0", SLOW_CYCLES), ("nop", 1), ("out put", 1),
        ("ld #0\njnz end", 2), ("jmp next_{n}\nnext_{n}:", 2), ("call sub", 4),
        ("cnt #4\nhere_{n}:\nadd #1\nloop here_{n}", 12),
    ],
)  # fmt: skip
def test_cycles_of_instructions(lines: str, cost: int) -> None:
    def program(count: int) -> str:
        return "\n".join(lines.format(n=n) for n in range(count)) + "\nend:\n" + END + "sub:\nret"

    assert run(program(9))[2] - run(program(1))[2] == 8 * cost


def test_calls_within_calls() -> None:
    routines = "".join(
        f"r{depth}:\nadd #1\nout put\ncall r{depth + 1}\nsub #3\nout row\nret\n" for depth in range(STACK - 1)
    )
    trace, _, _ = run(f"ld #0\ncall r0\n{END}{routines}r{STACK - 1}:\nadd #100\nret")
    assert len(trace) == 2 * (STACK - 1) + 1


def test_jumps_wait_for_input_and_output() -> None:
    """And the cycle counter goes on meanwhile."""
    text = f"ld clock\nst v0\nin:\njni in\nld word\nout put\nbusy:\njno busy\nld clock\nsub v0\n{END}"
    dut = Machine(assemble([HEAD, text], {"NUMBERS": [0]}), TABLES)
    seen: list[tuple[int, int, int]] = []

    async def bench(ctx: Any) -> None:
        for cycle in range(80):
            ctx.set(dut.word_valid, cycle >= 30)
            ctx.set(dut.word, 77)
            ctx.set(dut.free, cycle >= 60)
            assert not ctx.get(dut.word_take) or cycle >= 30
            if ctx.get(dut.strobe):
                seen.append((cycle, ctx.get(dut.strobe), ctx.get(dut.a)))
            await ctx.tick()

    simulate(dut, bench)
    (first, put, value), (last, connect, waited) = seen
    assert (put, value, connect) == (Strobe.PUT, 77, Strobe.CONNECT)
    assert 30 <= first <= 36 and 60 <= last <= 68 and last - 10 <= waited <= last
