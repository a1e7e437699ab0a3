"""Program text to instructions and data words of the small device's machine.

A line holds a label, an instruction or a directive; `;` begins a comment. Operands of instructions:

| written | means |
|---|---|
| `name`, `name + 3` | data word, by an expression over names and constants |
| `#expression` | constant that fits in the instruction |
| `=expression` | constant that stands in a data word, made once |
| `[p0]`, `[p0]+` | data word at a pointer; the second moves it on |
| `nib`, `row` | next nibble, next word of the row memory |
| `word`, `crc`, `clock`, `session` | inputs |

`set p0, array` and `ptr p0` set pointers, `cnt #32` the counter, `tab #1` names a section, `out put, crc` names
strobes. Directives: `.var a b` words of their own, `.array x 32` words in a row, which alone pointers may point at,
`.data t name` words in a row with the values of that name.

A data word can be read from the second instruction after its `st` on. Where the text reads it sooner, or may do so
through a pointer, a `nop` is put between. The same between `ptr` and the use or setting of a pointer, and between what
moves in the row memory, the CRC or the input and what reads there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from statecell_hw.small.isa import (
    ADDRESS_BITS,
    JUMPS,
    READERS,
    TABLE_SECTION,
    WORD_BITS,
    Mode,
    Op,
    Port,
    Strobe,
    encode,
)  # fmt: skip

MOST = 1 << ADDRESS_BITS
_POINTER = re.compile(r"\[p(\d)\](\+?)$")
_NAME = re.compile(r"[a-z_]\w*", re.IGNORECASE)
Value = int | Sequence[int]


class AssemblyError(ValueError):
    """The program text is wrong; the message gives line and reason."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """``code``: instructions; ``data``: first values of the data words; ``symbols``: addresses of labels and data."""

    code: tuple[int, ...]
    data: tuple[int, ...]
    symbols: Mapping[str, int]


@dataclass(frozen=True)
class _Instruction:
    op: Op
    mode: int
    argument: int
    label: str = ""
    shared: bool = False
    """The data word at the argument may be one that pointers point at."""

    @property
    def reads(self) -> bool:
        return self.op in READERS and self.mode in (Mode.DIRECT, Mode.AT, Mode.NEXT)

    @property
    def reads_row(self) -> bool:
        """It reads the row memory."""
        return self.op in READERS and self.mode in (Mode.NIBBLE, Mode.ROW)

    @property
    def points(self) -> bool:
        return self.op in (*READERS, Op.ST) and self.mode in (Mode.AT, Mode.NEXT)


def _hazard(first: _Instruction, then: _Instruction) -> bool:
    """Whether ``then`` must not follow at once."""
    if first.op is Op.PTR:
        return then.points or then.op is Op.SET
    if then.op in READERS and then.mode == Mode.PORT:
        changed = first.op is Op.OUT and first.argument & (Strobe.CRC | Strobe.CLEAR)
        return bool(changed) or (first.op in READERS and first.mode == Mode.PORT)
    if then.reads_row:
        return first.reads_row or first.op is Op.OUT
    if first.op is not Op.ST or not then.reads:
        return False
    if first.mode == Mode.DIRECT and then.mode == Mode.DIRECT:
        return first.argument == then.argument
    return all(x.shared or x.mode != Mode.DIRECT for x in (first, then))


class Assembler:
    """Takes lines and keeps what they mean; ``constants`` are the names that expressions may use."""

    def __init__(self, constants: Mapping[str, Value]) -> None:
        self._constants = constants
        self._names: dict[str, int] = {}
        self._arrays: set[str] = set()
        self._data: list[int] = []
        self._literals: dict[int, int] = {}
        self._code: list[_Instruction] = []
        self._labels: dict[str, int] = {}

    def take(self, text: str, *, directives: bool) -> None:
        """Take the directives of a text, or the rest of it. Raises AssemblyError for the first line that is wrong."""
        for number, full in enumerate(text.splitlines(), 1):
            line = full.partition(";")[0].strip()
            if not line or line.startswith(".") != directives:
                continue
            try:
                if directives:
                    self._directive(*line[1:].split(maxsplit=1))
                elif line.endswith(":"):
                    self._define(self._labels, line[:-1], len(self._code))
                else:
                    self._instruction(*line.split(maxsplit=1))
            except (ValueError, KeyError, TypeError, NameError, SyntaxError) as error:
                raise AssemblyError(f"line {number}, {full.strip()!r}: {error}") from error

    def finish(self) -> Program:
        """The program. Raises AssemblyError for a jump to nowhere, or if it is too long."""
        for instruction in self._code:
            if instruction.label and instruction.label not in self._labels:
                raise AssemblyError(f"there is no label {instruction.label!r}")
        code = [
            encode(i.op, i.mode, self._labels[i.label] if i.label else i.argument) for i in self._code
        ]
        if max(len(code), len(self._data)) > MOST:
            raise AssemblyError(f"{len(code)} instructions, {len(self._data)} data words; {MOST} of each is the most")
        return Program(code=tuple(code), data=tuple(self._data), symbols={**self._names, **self._labels})

    # -- lines --------------------------------------------------------------------------------------------------------
    def _directive(self, name: str, rest: str) -> None:
        if name == "var":
            for variable in rest.split():
                self._define(self._names, variable, self._place([0]))
            return
        array, what = rest.split(maxsplit=1)
        if name not in ("array", "data"):
            raise AssemblyError(f"there is no directive {name!r}")
        value = self._evaluate(what)
        values = [0] * value if isinstance(value, int) else list(value)
        self._define(self._names, array, self._place(values))
        self._arrays.add(array)

    def _instruction(self, name: str, rest: str = "") -> None:
        op = Op[name.upper()]
        if op in JUMPS:
            self._add(_Instruction(op, 0, 0, label=rest))
        elif op is Op.OUT:
            self._add(_Instruction(op, 0, sum(Strobe[s.strip().upper()] for s in rest.split(","))))
        elif op in (Op.SET, Op.PTR):
            pointer, _, array = rest.partition(",")
            if op is Op.SET and not self._arrays & set(_NAME.findall(array)):
                raise AssemblyError("a pointer may point at an array only")
            self._add(_Instruction(op, int(pointer.strip()[1:]), self._number(array) if op is Op.SET else 0))
        elif op is Op.CNT:
            self._add(_Instruction(op, 0, self._number(rest.removeprefix("#"))))
        elif op is Op.TAB:
            self._add(_Instruction(op, 0, self._number(rest.removeprefix("#")) * TABLE_SECTION))
        elif op in (*READERS, Op.ST):
            self._add(self._operand(op, rest))
        else:
            self._add(_Instruction(op, 0, 0))

    def _operand(self, op: Op, text: str) -> _Instruction:
        pointed = _POINTER.match(text)
        if pointed:
            return _Instruction(op, Mode.NEXT if pointed[2] else Mode.AT, int(pointed[1]))
        if op is not Op.ST:
            if text[:1] == "#":
                value = self._number(text[1:])
                if not -MOST // 2 <= value < MOST // 2:
                    raise AssemblyError(f"{value} does not fit in an instruction; write ={text[1:]}")
                return _Instruction(op, Mode.CONST, value)
            if text[:1] == "=":
                value = self._number(text[1:])
                if value not in self._literals:
                    self._literals[value] = self._place([value])
                return _Instruction(op, Mode.DIRECT, self._literals[value])
            if text in ("nib", "row"):
                return _Instruction(op, Mode.NIBBLE if text == "nib" else Mode.ROW, 0)
            if text.upper() in Port.__members__:
                return _Instruction(op, Mode.PORT, Port[text.upper()])
        shared = bool(self._arrays & set(_NAME.findall(text)))
        return _Instruction(op, Mode.DIRECT, self._number(text), shared=shared)

    # -- parts --------------------------------------------------------------------------------------------------------
    def _add(self, instruction: _Instruction) -> None:
        if self._code and _hazard(self._code[-1], instruction):
            self._code.append(_Instruction(Op.NOP, 0, 0))
        self._code.append(instruction)

    def _define(self, names: dict[str, int], name: str, value: int) -> None:
        if name in self._names or name in self._labels or name in self._constants:
            raise AssemblyError(f"{name!r} is defined already")
        names[name] = value

    def _place(self, values: Sequence[int]) -> int:
        limit = 1 << WORD_BITS
        self._data += [value % limit for value in values]
        return len(self._data) - len(values)

    def _number(self, text: str) -> int:
        value = self._evaluate(text)
        if not isinstance(value, int):
            raise AssemblyError(f"{text!r} is not one number")
        return value

    def _evaluate(self, text: str) -> Value:
        value: Value = eval(text, {"__builtins__": {}}, {**self._constants, **self._names})
        return value


def assemble(texts: Sequence[str], constants: Mapping[str, Value]) -> Program:
    """The program of several texts, one after the other. Raises AssemblyError."""
    assembler = Assembler(constants)
    for directives in (True, False):  # so that a line can use what is placed behind it
        for text in texts:
            assembler.take(text, directives=directives)
    return assembler.finish()
