"""CRC-32 of a frame, a link word at a time."""

from __future__ import annotations

import zlib
from typing import Any

from amaranth.hdl import Elaboratable, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec import frame

CRC_BITS = 8 * frame.CRC_BYTES
NIBBLE = 4
_ONES = (1 << CRC_BITS) - 1


def _contribution(word: int, link_bytes: int) -> int:
    """The raw register (neither end inverted) after one word, from zero: linear in the word."""
    return zlib.crc32(word.to_bytes(link_bytes, "little"), _ONES) ^ _ONES


class Crc(wiring.Component):
    """zlib's CRC-32 over link words, little-endian bytes.

    The step is linear: the next register is the sum (XOR) of what each nibble of the word contributes, after the
    register was added to the word's first bytes. A nibble's contribution comes from a table of 16 entries, one look-up
    table of four inputs per bit in an FPGA, and quick in a simulator. Latency 1 cycle: `crc` covers all words up to the
    previous cycle. Reset as `clear`.

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
        overlap = min(8 * self.link_bytes, CRC_BITS)  # bits of the register that meet the word
        word = Signal(8 * self.link_bytes)
        m.d.comb += word.eq(self.data ^ state[:overlap])
        following: Value = state[overlap:]
        for index in range(len(word) // NIBBLE):
            table = [_contribution(value << (NIBBLE * index), self.link_bytes) for value in range(1 << NIBBLE)]
            memory: Memory = Memory(shape=CRC_BITS, depth=1 << NIBBLE, init=table)
            m.submodules[f"table_{index}"] = memory
            read = memory.read_port(domain="comb")
            m.d.comb += read.addr.eq(word.word_select(index, NIBBLE))
            following = following ^ read.data
        with m.If(self.clear):
            m.d.sync += state.eq(_ONES)
        with m.Elif(self.en):
            m.d.sync += state.eq(following)
        return m
