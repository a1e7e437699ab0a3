"""Read character vectors from an R package's lazy-load data base (`Rdata.rdx` and `Rdata.rdb`).

The index (`.rdx`) is a compressed serialised list whose element `variables` maps each name to (offset, length) in the
data file. A block of the data file is a big-endian 4-byte size, for some a type byte, and a compressed serialised
object. Only what character data needs of R's XDR serialisation (versions 2 and 3; R Internals, section 1.8) is read:
anything else is refused.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import zlib
from typing import Any

_SYMBOL, _PAIRLIST, _CHAR, _LOGICAL, _INTEGER, _REAL, _STRING, _LIST = 1, 2, 9, 10, 13, 14, 16, 19
_REFERENCE, _NIL = 0xFF, 0xFE


class RDataError(ValueError):
    """The bytes are not the R serialisation that this module reads."""


def read_lazy_data(index: bytes, data: bytes) -> dict[str, list[str]]:
    """All character vectors of a lazy-load data base: name -> strings, in the order of the index.

    `index` and `data` are the contents of the `.rdx` and the `.rdb` file. Raises RDataError.
    """
    variables = _unserialise(_decompress(index))["variables"]
    found: dict[str, list[str]] = {}
    for name, (offset, length) in variables.items():
        block = data[offset : offset + length]
        if len(block) != length or length < 5:
            raise RDataError(f"the block of {name} lies outside the data file")
        value = _unserialise(_decompress_block(block))
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            found[name] = value
    return found


def _decompress(data: bytes) -> bytes:
    for magic, decompress in ((b"\x1f\x8b", gzip.decompress), (b"BZh", bz2.decompress), (b"\xfd7zXZ", lzma.decompress)):
        if data.startswith(magic):
            return decompress(data)
    return zlib.decompress(data)


def _decompress_block(block: bytes) -> bytes:
    size, body = struct.unpack(">I", block[:4])[0], block[4:]
    if body[:1] == b"2":
        out = bz2.decompress(body[1:])
    elif body[:1] == b"Z":
        out = lzma.decompress(body[1:])
    else:
        out = zlib.decompress(body)
    if len(out) != size:
        raise RDataError(f"a block holds {len(out)} bytes where its header says {size}")
    return out


def _unserialise(data: bytes) -> Any:
    reader = _Reader(data)
    if reader.take(2) != b"X\n":
        raise RDataError("the object is not in R's XDR serialisation")
    version, _, _ = reader.integer(), reader.integer(), reader.integer()
    if version == 3:
        reader.take(reader.integer())  # name of the native encoding
    elif version != 2:
        raise RDataError(f"serialisation version {version} is not known")
    return reader.item()


class _Reader:
    """A cursor over serialised bytes; `item` returns one object as a Python value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._references: list[Any] = []

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if count < 0 or len(piece) != count:
            raise RDataError("the serialised object ends too early")
        self._at += count
        return piece

    def integer(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def item(self) -> Any:
        flags = self.integer() & 0xFFFFFFFF
        kind, has_attributes, has_tag = flags & 0xFF, bool(flags & 0x200), bool(flags & 0x400)
        if kind == _NIL:
            return None
        if kind == _REFERENCE:
            index = (flags >> 8) or self.integer()
            return self._references[index - 1]
        if kind == _SYMBOL:
            symbol = self.item()
            self._references.append(symbol)
            return symbol
        if kind == _PAIRLIST:
            return self._pairlist(has_attributes, has_tag)
        if kind == _CHAR:
            length = self.integer()
            # gp bit 2 marks Latin-1; everything else in these packages is ASCII or UTF-8.
            return "" if length < 0 else self.take(length).decode("latin-1" if flags & 0x4000 else "utf-8")
        value = self._vector(kind)
        attributes = self.item() if has_attributes else None
        if kind == _LIST and isinstance(attributes, dict) and "names" in attributes:
            return dict(zip(attributes["names"], value, strict=True))
        return value

    def _vector(self, kind: int) -> list[Any]:
        if kind not in (_LOGICAL, _INTEGER, _REAL, _STRING, _LIST):
            raise RDataError(f"objects of type {kind} are not read")
        count = self.integer()
        if kind in (_LOGICAL, _INTEGER):
            return list(struct.unpack(f">{count}i", self.take(4 * count)))
        if kind == _REAL:
            return list(struct.unpack(f">{count}d", self.take(8 * count)))
        return [self.item() for _ in range(count)]

    def _pairlist(self, has_attributes: bool, has_tag: bool) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while True:
            if has_attributes:
                self.item()
            tag = self.item() if has_tag else str(len(out))
            out[tag] = self.item()
            flags = self.integer() & 0xFFFFFFFF
            if flags & 0xFF == _NIL:
                return out
            if flags & 0xFF != _PAIRLIST:
                raise RDataError("a pair list ends in something else than a pair list")
            has_attributes, has_tag = bool(flags & 0x200), bool(flags & 0x400)
