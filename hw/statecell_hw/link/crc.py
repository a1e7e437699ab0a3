"""CRC-32 of a frame, a link word at a time."""

from __future__ import annotations

import zlib
from typing import Any

from amaranth.hdl import Cat, Elaboratable, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import frame

CRC_BITS = 8 * frame.CRC_BYTES
_ONES = (1 << CRC_BITS) - 1


def _advance(state: int, word: int, link_bytes: int) -> int:
    """The raw register (neither end inverted) after one word: linear in (state, word)."""
    return zlib.crc32(word.to_bytes(link_bytes, "little"), state ^ _ONES) ^ _ONES


class Crc(wiring.Component):
    """zlib's CRC-32 over link words, little-endian bytes.

    The step is linear, so every bit of the next register is the parity of masked bits of register and word; the masks
    are zlib's answers to unit vectors. Latency 1 cycle: `crc` covers all words up to the previous cycle. Reset as
    `clear`.

    Members
    -------
    clear: start a new frame; wins over `en`.
    en, data: take a word.
    crc: CRC-32 of the words taken since `clear`.
    """

    clear: Signal
    en: Signal
    data: Signal
    crc: Signal

    def __init__(self, *, link_bytes: int) -> None:
        self.link_bytes = link_bytes
        super().__init__({"clear": In(1), "en": In(1), "data": In(8 * link_bytes), "crc": Out(CRC_BITS)})

    @property
    def latency(self) -> int:
        """Cycles from a word to a `crc` that covers it."""
        return 1

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        state = Signal(CRC_BITS, init=_ONES)
        m.d.comb += self.crc.eq(~state)
        bits = 8 * self.link_bytes
        state_columns = [_advance(1 << i, 0, self.link_bytes) for i in range(CRC_BITS)]
        word_columns = [_advance(0, 1 << i, self.link_bytes) for i in range(bits)]
        with m.If(self.clear):
            m.d.sync += state.eq(_ONES)
        with m.Elif(self.en):
            m.d.sync += state.eq(
                Cat(self._parity(state, state_columns, self.data, word_columns, bit) for bit in range(CRC_BITS))
            )
        return m

    @staticmethod
    def _parity(state: Value, state_columns: list[int], word: Value, word_columns: list[int], bit: int) -> Value:
        # Folding 32-bit pieces before the parity is what simulators do fastest; synthesis sees the same XOR tree.
        folded: Value = state & _mask(state_columns, bit)
        for low in range(0, len(word_columns), CRC_BITS):
            folded = folded ^ (word[low : low + CRC_BITS] & _mask(word_columns[low : low + CRC_BITS], bit))
        return folded.xor()


def _mask(columns: list[int], bit: int) -> int:
    return sum(1 << i for i, column in enumerate(columns) if column >> bit & 1)
