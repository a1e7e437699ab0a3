"""The small device's instructions in plain Python, one after the other, from the words of `statecell_hw.small.isa`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from statecell_hw.small.assembler import Program
from statecell_hw.small.isa import ADDRESS_BITS, MODE_BITS, POINTERS, TABLE_SECTION, Mode, Op, Port, Strobe


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@dataclass
class Interpreter:
    """Runs ``program``; what is outside the machine are constants, but for the words at its input.

    ``trace``: of each OUT the strobes and the accumulator. ``taken``: nibbles, row words, input words that were read.
    """

    program: Program
    tables: Sequence[int]
    nibble: int
    row: int
    crc: int
    session: int
    word: Callable[[int], int]
    a: int = 0
    trace: list[tuple[int, int]] = field(default_factory=list)
    taken: list[int] = field(default_factory=lambda: [0, 0, 0])

    def run(self, most: int = 100_000) -> None:
        """Run until a CONNECT strobe."""
        self._data = list(self.program.data)
        self._pointers = [0] * POINTERS
        self._stack: list[int] = []
        self._count = self._at = 0
        for _ in range(most):
            self._step()
            if self.trace and self.trace[-1][0] & Strobe.CONNECT:
                return
        raise AssertionError(f"no end after {most} instructions")

    def _step(self) -> None:
        code = self.program.code[self._at]
        argument = code & ((1 << ADDRESS_BITS) - 1)
        mode = code >> ADDRESS_BITS & ((1 << MODE_BITS) - 1)
        op = Op(code >> (ADDRESS_BITS + MODE_BITS))
        self._at += 1
        if op <= Op.MUL:
            self.a = signed(self._result(op, self._operand(mode, argument)), 32)
        elif op is Op.TAB:
            self.a = self.tables[argument // TABLE_SECTION * TABLE_SECTION + self.a % TABLE_SECTION]
        elif op is Op.ST:
            self._data[self._address(mode, argument)] = self.a
        elif op is Op.PTR:
            self._pointers[mode] = self.a & ((1 << ADDRESS_BITS) - 1)
        elif op is Op.SET:
            self._pointers[mode] = argument
        elif op is Op.CNT:
            self._count = argument
        elif op is Op.OUT:
            self.trace.append((argument, self.a))
        elif op is Op.RET:
            self._at = self._stack.pop()
        elif op is not Op.NOP:
            self._jump(op, argument)

    def _jump(self, op: Op, target: int) -> None:
        if op is Op.CALL:
            self._stack.append(self._at)
        if op is Op.LOOP:
            self._count -= 1
        taken = {
            Op.LOOP: self._count != 0, Op.JZ: self.a == 0, Op.JNZ: self.a != 0, Op.JN: self.a < 0,
            Op.JNN: self.a >= 0, Op.JNI: False, Op.JNO: False,
        }.get(op, True)  # fmt: skip
        if taken:
            self._at = target

    def _address(self, mode: int, argument: int) -> int:
        if mode == Mode.DIRECT:
            return argument
        address = self._pointers[argument]
        self._pointers[argument] += mode == Mode.NEXT
        return address

    def _operand(self, mode: int, argument: int) -> int:
        if mode == Mode.CONST:
            return signed(argument, ADDRESS_BITS)
        if mode == Mode.NIBBLE:
            self.taken[0] += 1
            return self.nibble
        if mode == Mode.ROW:
            self.taken[1] += 1
            return self.row
        if mode == Mode.PORT:
            if argument == Port.WORD:
                self.taken[2] += 1
                return self.word(self.taken[2] - 1)
            return signed({Port.CRC: self.crc, Port.SESSION: self.session}[Port(argument)], 32)
        return signed(self._data[self._address(mode, argument)], 32)

    def _result(self, op: Op, m: int) -> int:
        a = self.a
        return {
            Op.LD: m, Op.ADD: a + m, Op.SUB: a - m, Op.AND: a & m, Op.MIN: min(a, m), Op.MAX: max(a, m),
            Op.ASR: a >> m % 32, Op.MUL: a * signed(m, 16),
        }[op]  # fmt: skip
