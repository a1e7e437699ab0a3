"""The shift register has its full period, and the vectorised walk is the bit-by-bit one."""

from __future__ import annotations

import torch

from statecell.model.recurrent import noise
from statecell.spec import formats

IDENTITY = [1 << bit for bit in range(32)]
PRIME_FACTORS = (3, 5, 17, 257, 65537)


def product(a: list[int], b: list[int]) -> list[int]:
    """Composition of two linear maps given by the images of the bits: a after b."""
    out = []
    for image in b:
        total = 0
        for bit in range(32):
            if image >> bit & 1:
                total ^= a[bit]
        out.append(total)
    return out


def power(a: list[int], n: int) -> list[int]:
    result = IDENTITY
    while n:
        if n & 1:
            result = product(result, a)
        a, n = product(a, a), n >> 1
    return result


def test_the_period_is_full() -> None:
    shift = [noise.shifted(1 << bit, 1) for bit in range(32)]
    assert power(shift, 2**32 - 1) == IDENTITY
    assert all(power(shift, (2**32 - 1) // p) != IDENTITY for p in PRIME_FACTORS)


def test_rows_follow_each_other() -> None:
    state = torch.tensor([1, 0xDEADBEEF, 0x80000000])
    words, after = noise.advance(state, 5)
    for h, start in enumerate(state.tolist()):
        expected = [noise.shifted(start, formats.LFSR_LEAP * row) for row in range(6)]
        assert [*words[h].tolist(), int(after[h])] == expected


def test_lanes_take_wrapped_bytes_and_are_uniform() -> None:
    word = 0x8123456F
    found = noise.lanes(torch.tensor([word]), 64)[0].tolist()
    double = word << 32 | word
    assert found == [double >> lane % 32 & 255 for lane in range(64)]
    words, _ = noise.advance(torch.tensor([12345]), 20000)
    mean = noise.lanes(words, 8).double().mean((0, 1))
    assert float((mean - 127.5).abs().max()) < 3


def test_the_register_after_a_pass_is_that_of_the_walk() -> None:
    state = torch.tensor([1, 0x80200003, 123456789])
    for rows in (1, 64):
        assert torch.equal(noise.after(state, rows), noise.advance(state, rows)[1])
