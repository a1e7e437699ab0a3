"""Row memory of the small device: 16-bit words that are read and written one after the other."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, ClockSignal, Const, Elaboratable, Instance, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from statecell_hw.array.rowmemory import MODULE, VERILOG_PLATFORM

ROW_WORD_BITS = 16
NIBBLE_BITS = 4
NIBBLES = ROW_WORD_BITS // NIBBLE_BITS
SPRAM_PARTS = "iCE40UP"
"""Beginning of the names of the FPGAs that have single-port RAM blocks."""
SPRAM_WORDS = 1 << 14


class RowStore(wiring.Component):
    """Memory of ``words`` words with one address, which `seek` sets and reading and writing move on.

    `nibble` and `word` are what stands at the address, valid in the cycle after `seek`, `next_nibble` and `next_word`.
    `write` replaces the word there and moves on to the next; in the cycle after it `nibble` and `word` mean nothing. At
    most one of the four comes in a cycle. Nothing is reset. On an iCE40 UltraPlus the memory is made of its
    single-port RAM blocks, for the platform "verilog" it is written in Verilog without initial values.

    Members
    -------
    seek, address: go to the first nibble of a word.
    next_nibble, next_word: go on by a nibble, or to the first nibble of the next word.
    write, data: see above.
    nibble, word: see above.
    """

    seek: Signal
    address: Signal
    next_nibble: Signal
    next_word: Signal
    write: Signal
    data: Signal
    nibble: Signal
    word: Signal

    def __init__(self, words: int) -> None:
        self.words = words
        super().__init__(
            {
                "seek": In(1),
                "address": In(range(words)),
                "next_nibble": In(1),
                "next_word": In(1),
                "write": In(1),
                "data": In(ROW_WORD_BITS),
                "nibble": Out(signed(NIBBLE_BITS)),
                "word": Out(ROW_WORD_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        at = Signal(ceil_log2(NIBBLES) + len(self.address))  # nibble, the place in the word lowest
        following = Signal.like(at)
        place, here = at[: ceil_log2(NIBBLES)], at[ceil_log2(NIBBLES) :]
        address = Signal.like(self.address)
        with m.If(self.seek):
            m.d.comb += following.eq(Cat(Const(0, len(place)), self.address))
        with m.Elif(self.next_nibble):
            m.d.comb += following.eq(at + 1)
        with m.Elif(self.next_word | self.write):
            m.d.comb += following.eq(Cat(Const(0, len(place)), here + 1))
        with m.Else():
            m.d.comb += following.eq(at)
        m.d.sync += at.eq(following)
        m.d.comb += [
            # what is read now is valid in the next cycle, so the next cycle's address is asked for
            address.eq(Mux(self.write, here, following[ceil_log2(NIBBLES) :])),
            self.nibble.eq(self.word.word_select(place, NIBBLE_BITS)),
        ]
        if platform == VERILOG_PLATFORM:
            self._in_verilog(m, address)
        elif str(getattr(platform, "device", "")).startswith(SPRAM_PARTS):
            self._in_spram(m, address)
        else:
            memory: Memory = Memory(shape=ROW_WORD_BITS, depth=self.words, init=[])
            m.submodules.memory = memory
            read, write = memory.read_port(), memory.write_port()
            m.d.comb += [
                read.addr.eq(address), read.en.eq(~self.write), self.word.eq(read.data),
                write.addr.eq(address), write.en.eq(self.write), write.data.eq(self.data),
            ]
        return m

    def _in_verilog(self, m: Module, address: Signal) -> None:
        m.submodules.memory = Instance(
            MODULE,
            p_WIDTH=ROW_WORD_BITS, p_DEPTH=self.words, p_ADDRESS=len(address), i_clk=ClockSignal(),
            i_write_en=self.write, i_write_row=address, i_write_data=self.data,
            i_read_row=address, o_read_data=self.word,
        )

    def _in_spram(self, m: Module, address: Signal) -> None:
        within = ceil_log2(SPRAM_WORDS)
        parts = -(-self.words // SPRAM_WORDS)
        part, asked = Signal(range(max(parts, 2))), Signal(range(max(parts, 2)))
        m.d.comb += asked.eq(address[within:])
        m.d.sync += part.eq(asked)
        words = []
        for number in range(parts):
            word = Signal(ROW_WORD_BITS, name=f"word_{number}")
            m.submodules[f"memory_{number}"] = Instance(
                "SB_SPRAM256KA",
                i_ADDRESS=address[:within], i_DATAIN=self.data, i_MASKWREN=0b1111,
                i_WREN=self.write & (asked == number), i_CHIPSELECT=asked == number, i_CLOCK=ClockSignal(),
                i_STANDBY=0, i_SLEEP=0, i_POWEROFF=1,  # low turns the block off
                o_DATAOUT=word,
            )
            words.append(word)
        m.d.comb += self.word.eq(Array(words)[part])
