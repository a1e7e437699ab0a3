"""Frames: round trips, damage, and Hypothesis on whatever bytes come back."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statecell.link.framing import FrameError, Request, decode
from statecell.spec import frame
from statecell.spec.commands import Opcode, Status

LINKS = (2, 4, 8, 16)


def answer(link_bytes: int, payload: bytes = b"", **fields: int) -> bytes:
    header = {"version": frame.VERSION, "opcode": Opcode.INFO | frame.RESPONSE, "blocks": len(payload) // 16} | fields
    return frame.seal(frame.pack_header(frame.RESPONSE_HEADER, **header) + payload, link_bytes)


@pytest.mark.parametrize("link_bytes", LINKS)
def test_request_layout(link_bytes: int) -> None:
    request = Request(opcode=Opcode.ATTEND, slot=0x1234, count=3, shift=21, payload=bytes(range(32)))
    data = request.encode(0xABCD, link_bytes)
    assert data[:16] == bytes.fromhex("c1 21 cd ab 34 12 02 00 03 00 00 00 00 00 15 00")
    assert data[16:48] == bytes(range(32))
    assert data[48:52] == zlib.crc32(data[:48]).to_bytes(4, "little")
    assert len(data) % link_bytes == 0 and not any(data[52:])


@pytest.mark.parametrize("link_bytes", LINKS)
def test_response_round_trip(link_bytes: int) -> None:
    response = decode(answer(link_bytes, b"x" * 32, status=Status.FULL, sequence=7, slot=9, value=1 << 31), link_bytes)
    assert (response.status, response.sequence, response.slot, response.value) == (Status.FULL, 7, 9, 1 << 31)
    assert response.payload == b"x" * 32 and response.opcode == Opcode.INFO


@given(data=st.binary(max_size=96), link_bytes=st.sampled_from(LINKS))
@settings(derandomize=True)
def test_garbage_is_refused(data: bytes, link_bytes: int) -> None:
    with pytest.raises(FrameError):
        decode(data, link_bytes)


@given(position=st.integers(0, 51), bit=st.integers(0, 7))
@settings(derandomize=True)
def test_one_flipped_bit_is_refused(position: int, bit: int) -> None:
    data = bytearray(answer(4, b"y" * 32, value=77))
    data[position] ^= 1 << bit
    with pytest.raises(FrameError):
        decode(bytes(data), 4)


@pytest.mark.parametrize("wrong", [{"version": 0xC2}, {"opcode": 1}, {"blocks": 3}, {"status": 200}])
def test_a_sound_crc_does_not_excuse_a_wrong_header(wrong: dict[str, int]) -> None:
    with pytest.raises(FrameError):
        decode(answer(4, b"", **wrong), 4)


def test_payload_must_be_whole_blocks() -> None:
    with pytest.raises(ValueError, match="blocks of 16"):
        Request(opcode=Opcode.MAP, payload=b"123").encode(0, 4)
