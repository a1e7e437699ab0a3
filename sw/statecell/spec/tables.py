"""Markdown tables of the specification, kept in documents between ``<!-- table: NAME -->`` and ``<!-- end -->``.

python -m statecell.spec.tables docs/protocol.md            writes the tables anew
python -m statecell.spec.tables --check docs/protocol.md    exits with 1 if one is out of date
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from statecell.spec import serial
from statecell.spec.commands import (
    COMMANDS,
    COUNTER_FIELDS,
    INFO_FIELDS,
    STATE_FIELDS,
    STATE_MODE_BITS,
    STATUS_TEXT,
    Flag,
    StateFlag,
    Status,
)
from statecell.spec.fingerprint import fingerprint
from statecell.spec.frame import REQUEST_HEADER, RESPONSE_HEADER, Field
from statecell.spec.geometry import CONFIGS

_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _header(fields: tuple[Field, ...]) -> str:
    return _table(("byte", "bytes", "field", "meaning"), ((f.offset, f.width, f.name, f.meaning) for f in fields))


TABLES: dict[str, Callable[[], str]] = {
    "request": lambda: _header(REQUEST_HEADER),
    "response": lambda: _header(RESPONSE_HEADER),
    "commands": lambda: _table(
        ("code", "command", "does", "arguments", "payload", "answer", "value"),
        ((f"{c.opcode:#04x}", c.opcode.name, c.summary, c.arguments, c.payload, c.answer, c.value) for c in COMMANDS),
    ),
    "status": lambda: _table(("code", "status", "meaning"), ((int(s), s.name, STATUS_TEXT[s]) for s in Status)),
    "flags": lambda: _table(("bit value", "flag"), ((int(f), f.name) for f in Flag)),
    "info": lambda: _table(("offset", "field"), ((4 * i, name) for i, name in enumerate(INFO_FIELDS))),
    "state": lambda: _table(("offset", "field"), ((8 * i, name) for i, name in enumerate(STATE_FIELDS))),
    "mode": lambda: _table(("bits", "field"), ((bits, name) for name, bits in STATE_MODE_BITS.items())),
    "stateflags": lambda: _table(("bit value", "flag"), ((int(f), f.name) for f in StateFlag)),
    "counters": lambda: _table(("offset", "field"), ((8 * i, name) for i, name in enumerate(COUNTER_FIELDS))),
    "serial": lambda: _table(
        ("what", "value"),
        (("bit rate after reset, break and silence", f"{serial.START_BAUD} baud"),
         ("fastest bit rate", f"clock / {serial.BIT_CYCLES}, small devices clock / {2 * serial.BIT_CYCLES}"),
         ("divisor of a bit rate", f"clock cycles of a bit times {1 << serial.FRACTION_BITS}"),
         ("break", f"the line is low for {serial.BREAK_BITS} bits"),
         ("silence", f"no good frame for {serial.SILENCE_S} s"),
         ("delimiter", f"{serial.DELIMITER:#04x}"),
         ("room kept free among the answers", f"{serial.SHORTEST} bytes")),
    ),
    "fingerprint": lambda: f"Fingerprint of this specification: `{fingerprint():#010x}`.\n",
    "configs": lambda: _table(
        ("configuration", "head_dim", "query lanes", "tiles", "rows per bank and tile", "slots", "rows per slot",
         "link bytes", "query bits", "zero points", "states", "bits per element"),
        ((g.name, g.head_dim, g.lanes, g.tiles, g.rows, g.slots, g.slot_rows, g.link_bytes, g.query_bits,
          "yes" if g.zero_point else "no", g.states, g.bits_per_element) for g in CONFIGS.values()),
    ),
}


def render(text: str) -> str:
    """``text`` with every marked table written anew. Raises KeyError for a table that there is not."""
    return _BLOCK.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def main(arguments: list[str]) -> int:
    """Write or check the tables of the files named; returns the exit code."""
    check = arguments[:1] == ["--check"]
    stale = 0
    for name in arguments[1:] if check else arguments:
        path = Path(name)
        text = path.read_text(encoding="utf-8")
        fresh = render(text)
        if fresh != text:
            if check:
                print(f"{name}: a table differs from the specification; run `make docs`", file=sys.stderr)
                stale += 1
            else:
                path.write_text(fresh, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
