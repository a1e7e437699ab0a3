from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statecell.link import cobs
from statecell.link.framing import FrameError

# Pairs of the published description of the encoding, without and with the delimiter.
KNOWN = [
    ("00", "01 01 00"),
    ("00 00", "01 01 01 00"),
    ("11 22 00 33", "03 11 22 02 33 00"),
    ("11 22 33 44", "05 11 22 33 44 00"),
    ("11 00 00 00", "02 11 01 01 01 00"),
    (bytes(range(1, 255)).hex(), "ff" + bytes(range(1, 255)).hex() + "00"),
    (bytes(range(255)).hex(), "01 ff" + bytes(range(1, 255)).hex() + "00"),
    (bytes(range(1, 256)).hex(), "ff" + bytes(range(1, 255)).hex() + "02 ff 00"),
    ((bytes(range(2, 256)) + b"\0").hex(), "ff" + bytes(range(2, 256)).hex() + "01 01 00"),
    ((bytes(range(3, 256)) + b"\0\1").hex(), "fe" + bytes(range(3, 256)).hex() + "02 01 00"),
]


@pytest.mark.parametrize(("data", "wire"), KNOWN)
def test_known_pairs(data: str, wire: str) -> None:
    assert cobs.encode(bytes.fromhex(data)) == bytes.fromhex(wire)
    assert cobs.decode(bytes.fromhex(wire)[:-1]) == bytes.fromhex(data)


@given(st.lists(st.sampled_from([b"\0", b"\1", bytes(range(1, 255)), bytes([7]) * 254, bytes([9]) * 253]), max_size=9))
@example([])
def test_comes_back_without_zeros(parts: list[bytes]) -> None:
    data = b"".join(parts)
    wire = cobs.encode(data)
    assert wire.count(0) == 1 and wire[-1] == 0
    assert cobs.decode(wire[:-1]) == data
    assert len(wire) <= len(data) + 2 + len(data) // 254


def test_a_cut_block_is_refused() -> None:
    with pytest.raises(FrameError, match="inside a block"):
        cobs.decode(b"\x05\x01\x02")
