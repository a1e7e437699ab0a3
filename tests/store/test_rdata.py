from __future__ import annotations

import gzip
import random
import struct
import zlib

import pytest

from statecell.store.rdata import RDataError, read_lazy_data


def _chars(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">Ii", 0x00000009, -1)
    data = text.encode()
    return struct.pack(">Ii", 0x00040009 | 0x8000, len(data)) + data


def _strings(texts: list[str | None]) -> bytes:
    return struct.pack(">Ii", 16, len(texts)) + b"".join(_chars(text) for text in texts)


def _object(body: bytes, version: int = 2) -> bytes:
    encoding = struct.pack(">i", 5) + b"UTF-8" if version == 3 else b""
    return b"X\n" + struct.pack(">iii", version, 0x00030502, 0x00020300) + encoding + body


def _named_list(entries: dict[str, bytes]) -> bytes:
    symbol = struct.pack(">I", 1) + _chars("names")
    names = struct.pack(">I", 0x402) + symbol + _strings(list(entries)) + struct.pack(">I", 0xFE)
    return struct.pack(">Ii", 0x213, len(entries)) + b"".join(entries.values()) + names


def _integers(values: list[int]) -> bytes:
    return struct.pack(f">Ii{len(values)}i", 13, len(values), *values)


def _data_base(texts: dict[str, list[str | None]], version: int = 2) -> tuple[bytes, bytes]:
    data, places = b"", {}
    for name, lines in texts.items():
        plain = _object(_strings(lines), version)
        block = struct.pack(">I", len(plain)) + zlib.compress(plain)
        places[name] = _integers([len(data), len(block)])
        data += block
    index = _object(_named_list({"variables": _named_list(places)}), version)
    return gzip.compress(index), data


@pytest.mark.parametrize("version", [2, 3])
def test_reads_what_was_written(version: int) -> None:
    rng = random.Random(7)
    texts: dict[str, list[str | None]] = {
        f"book{i}": ["".join(rng.choices("aé—z ", k=rng.randrange(40))) for _ in range(50)] for i in range(3)
    }
    assert read_lazy_data(*_data_base(texts, version)) == texts


def test_missing_string_is_empty() -> None:
    assert read_lazy_data(*_data_base({"a": ["x", None]})) == {"a": ["x", ""]}


def test_a_block_outside_the_file_is_refused() -> None:
    index, data = _data_base({"a": ["x"]})
    with pytest.raises(RDataError, match="outside the data file"):
        read_lazy_data(index, data[:-1])


def test_a_wrong_size_is_refused() -> None:
    index, data = _data_base({"a": ["x"]})
    wrong = struct.pack(">I", struct.unpack(">I", data[:4])[0] + 1) + data[4:]
    with pytest.raises(RDataError, match="where its header says"):
        read_lazy_data(index, wrong)


def test_other_formats_are_refused() -> None:
    with pytest.raises(RDataError, match="XDR"):
        read_lazy_data(gzip.compress(b"A\n" + bytes(20)), b"")
    with pytest.raises(RDataError, match="version 4"):
        read_lazy_data(gzip.compress(_object(b"", 4)), b"")
    with pytest.raises(RDataError, match="ends too early"):
        read_lazy_data(gzip.compress(_object(_strings(["x"]))[:-1]), b"")
