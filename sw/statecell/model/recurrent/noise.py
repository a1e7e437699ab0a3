"""Noise of the stochastic rounding: one linear-feedback shift register per head, followed bit for bit."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from statecell.spec import formats

_WORD = (1 << formats.LFSR_BITS) - 1


def shifted(state: int, count: int) -> int:
    """The register after ``count`` shifts: right by one, and XOR with the taps if a 1 fell out."""
    for _ in range(count):
        state = (state >> 1) ^ (formats.LFSR_TAPS if state & 1 else 0)
    return state


@cache
def _tables(rows: int) -> Tensor:
    """[rows + 1, 4, 256]: what byte b of the register becomes after LFSR_LEAP shifts a row; the register is linear."""
    bits = torch.zeros(rows + 1, formats.LFSR_BITS, dtype=torch.int64)
    for bit in range(formats.LFSR_BITS):
        state = 1 << bit
        for row in range(rows + 1):
            bits[row, bit] = state
            state = shifted(state, formats.LFSR_LEAP)
    table = torch.zeros(rows + 1, formats.LFSR_BITS // 8, 256, dtype=torch.int64)
    value = torch.arange(256)
    for bit in range(formats.LFSR_BITS):
        chosen = (value >> bit % 8) & 1
        table[:, bit // 8] ^= chosen * bits[:, bit, None]
    return table


def after(state: Tensor, rows: int) -> Tensor:
    """The registers [H] after a pass over ``rows`` rows, from the registers ``state`` int64 [H]."""
    table = _tables(rows)[rows]
    first, second, third, fourth = (table[b, (state >> 8 * b) & 255] for b in range(len(table)))
    return first ^ second ^ third ^ fourth


def advance(state: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(register at each row [H, rows], register after the pass [H]) from the registers ``state`` int64 [H]."""
    table = _tables(rows)
    parts = [table[:, b, (state >> 8 * b) & 255] for b in range(table.shape[1])]
    words = (parts[0] ^ parts[1] ^ parts[2] ^ parts[3]).transpose(0, 1)
    return words[:, :rows], words[:, rows]


def lanes(words: Tensor, count: int) -> Tensor:
    """Noise bytes [..., count] of the words [...]: lane l has the 8 bits from bit l mod 32 up, wrapping."""
    first = torch.arange(count) % formats.LFSR_BITS
    word = words[..., None]
    turned = (word >> first) | (word << (formats.LFSR_BITS - first) & _WORD)
    return turned & ((1 << formats.NOISE_BITS) - 1)
