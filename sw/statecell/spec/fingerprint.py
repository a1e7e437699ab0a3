"""Fingerprint of the specification: driver and device must have the same."""

from __future__ import annotations

import zlib
from dataclasses import astuple

from statecell.spec import commands, formats, frame, serial


def fingerprint() -> int:
    """CRC-32 over command table, status codes, header layouts, INFO and counter fields, number formats, serial link."""
    parts: list[object] = [frame.VERSION, [astuple(f) for f in frame.REQUEST_HEADER + frame.RESPONSE_HEADER]]
    parts += [(c.opcode.name, int(c.opcode), c.arguments, c.payload, c.answer, c.value) for c in commands.COMMANDS]
    parts += [(s.name, int(s)) for s in commands.Status] + [(f.name, int(f)) for f in commands.Flag]
    parts += [commands.INFO_FIELDS, commands.COUNTER_FIELDS, commands.STATE_FIELDS, commands.STATE_MODE_BITS]
    parts += [(f.name, int(f)) for f in commands.StateFlag]
    for module in (formats, serial):
        parts += [(n, v) for n, v in sorted(vars(module).items()) if n.isupper() and isinstance(v, (int, tuple))]
    return zlib.crc32(repr(parts).encode())
