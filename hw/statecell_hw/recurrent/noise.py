"""Noise register of the stochastic rounding."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats


def _leap() -> list[int]:
    """For each bit of the register after LFSR_LEAP shifts, the mask of the bits now whose parity it is."""
    after = []
    for bit in range(formats.LFSR_BITS):
        state = 1 << bit
        for _ in range(formats.LFSR_LEAP):
            state = (state >> 1) ^ (formats.LFSR_TAPS if state & 1 else 0)
        after.append(state)
    return [sum((after[source] >> bit & 1) << source for source in range(formats.LFSR_BITS))
            for bit in range(formats.LFSR_BITS)]


def advanced(word: Value) -> Value:
    """The register at the next row: LFSR_LEAP shifts as one exclusive-or of each bit. Combinational."""
    return Cat((word & mask).xor() for mask in _leap())


def lane_noise(word: Value, lane: int) -> Value:
    """Noise byte of a lane: the NOISE_BITS from bit ``lane`` on, wrapping. Combinational."""
    return Cat(word[(lane + bit) % formats.LFSR_BITS] for bit in range(formats.NOISE_BITS))


class Noise(wiring.Component):
    """One 32-bit Galois register; docs/numerics.md, 8.7.

    ``word`` is the register of the row that came with ``valid`` a cycle before: ``seed`` for the ``first`` row of a
    head, else LFSR_LEAP shifts after the row before. ``next`` is what the next row would get. Latency 1, interval 1.
    """

    valid: Signal
    first: Signal
    seed: Signal
    word: Signal
    next: Signal

    def __init__(self) -> None:
        super().__init__({
            "valid": In(1),
            "first": In(1),
            "seed": In(formats.LFSR_BITS),
            "word": Out(formats.LFSR_BITS),
            "next": Out(formats.LFSR_BITS),
        })

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        m.d.comb += self.next.eq(advanced(self.word))
        with m.If(self.valid):
            m.d.sync += self.word.eq(Mux(self.first, self.seed, self.next))
        return m
