"""Buffers, divisors and answer sizes of the serial link."""

from __future__ import annotations

from typing import Any

import pytest

from statecell.spec.commands import Opcode
from statecell.spec.geometry import GeometryError, config
from statecell.spec.serial import SerialLink, answer_bytes, divisor


@pytest.mark.parametrize(
    ("field", "value"),
    [("request_bytes", 1000), ("request_bytes", 32), ("answer_bytes", 0), ("answer_bytes", 1 << 17), ("answers", 8),
     ("answers", 0)],
)
def test_a_bad_buffer_is_named(field: str, value: int) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(GeometryError, match=field):
        SerialLink(**changed)


def test_divisors_are_within_half_a_step() -> None:
    assert divisor(24_000_000, 3_000_000) == 128
    assert divisor(25_000_000, 3_000_000) == 133
    for clock in (12_000_000, 25_000_000, 48_000_000, 100_000_000):
        for baud in (115_200, 230_400, 921_600, clock // 8):
            assert abs(clock / baud - divisor(clock, baud) / 16) <= 1 / 32


@pytest.mark.parametrize(("clock", "baud"), [(24_000_000, 3_100_000), (500_000_000, 115_200)])
def test_a_rate_that_the_clock_cannot_give_is_refused(clock: int, baud: int) -> None:
    with pytest.raises(ValueError, match=f"{clock} Hz cannot give {baud} baud"):
        divisor(clock, baud)


def test_answers_have_the_size_of_their_payload() -> None:
    g = config("smollm2")
    assert answer_bytes(Opcode.APPEND, 5, g) == 20
    assert answer_bytes(Opcode.ATTEND, 3, g) == 20 + 3 * 128 + 16
    assert answer_bytes(Opcode.READ_ROWS, 2, g) == 20 + 2 * 2 * g.row_bytes
    assert answer_bytes(0x77, 5, g) == 20
