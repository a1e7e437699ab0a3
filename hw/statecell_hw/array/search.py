"""Scale search: chooses each group's scale of least squared error and assembles the rows."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import clamp, hold, shared
from statecell_hw.array.multiply import tree
from statecell_hw.array.quantise import NEAR_BITS
from statecell_hw.array.scale import CODE_BITS
from statecell_hw.layouts import SCALE, row_layout

RESIDUE_BITS = formats.CODE_BITS + formats.ERROR_FRACTION
"""Signed width of code * 16 - quotient * 16: a clipped quotient misses its code by less than 7."""
SQUARE_BITS = 2 * RESIDUE_BITS - 1
MIDDLE = 1 << (formats.CODE_BITS - 1)
"""Zero point that shifts nothing."""
PLACE = ("value", "tile", "row")
"""Fields of :func:`row_place` that a word's tag has too."""


def word_tag(geometry: Geometry) -> data.StructLayout:
    """What a quantised word needs to know: its place, its candidate, and where its row goes."""
    return data.StructLayout({
        "word": range(geometry.vector_words),
        "step": range(formats.CANDIDATES),
        "code": CODE_BITS,
        "turned": 1,
        "octave": 1,  # the candidate's exponent is that of step 0 (and not one less)
        "zero_point": 1,
        "value": 1,  # row of the value bank, else of the key bank
        "tile": range(geometry.tiles),
        "row": range(geometry.rows),
        "following": range(geometry.rows),  # the high plane's row
    })


def row_place(geometry: Geometry) -> data.StructLayout:
    """Where a row goes; ``value``: to the value bank, else to the key bank."""
    return data.StructLayout({"value": 1, "tile": range(geometry.tiles), "row": range(geometry.rows)})


def first_of_group(geometry: Geometry, word: Value) -> Value:
    """Whether the vector's word number ``word`` is the first of its group."""
    bits = exact_log2(geometry.group // geometry.word)
    return word[:bits] == 0 if bits else Const(1)


def last_of_group(geometry: Geometry, word: Value) -> Value:
    """Whether the vector's word number ``word`` is the last of its group."""
    bits = exact_log2(geometry.group // geometry.word)
    return word[:bits].all() if bits else Const(1)


class ScaleSearch(wiring.Component):
    """Rows from quantised words.

    Narrow rows: the words of a vector come CANDIDATES times, step 0 with the largest scale; each group keeps the codes,
    scale and zero point of least error sum((quotient - code)^2) * scale^2, the earlier step on a tie. The row is
    written ``latency`` cycles after the last word. Wide rows (``i_wide``): the words come once; the low plane is
    written to ``row`` ``wide_latency`` cycles after the last word, the high plane to ``following`` one cycle later.
    ``i_near``, ``i_fraction`` and ``i_zero`` as from the quantiser, one word in each cycle with ``i_valid``; interval 1
    word, but the first word of a wide row must not come within ``latency`` cycles of the last of another row.
    ``o_done`` comes with the last row that a vector writes. Reset drops what is inside.
    """

    i_valid: Signal
    i_wide: Signal
    i_tag: Any
    i_near: list[Signal]
    i_fraction: list[Signal]
    i_zero: Signal
    o_valid: Signal
    o_done: Signal
    o_place: Any
    o_data: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        super().__init__({
            "i_valid": In(1),
            "i_wide": In(1),
            "i_tag": In(word_tag(geometry)),
            "i_near": In(signed(NEAR_BITS)).array(geometry.word),
            "i_fraction": In(formats.ERROR_FRACTION).array(geometry.word),
            "i_zero": In(formats.ZERO_BITS),
            "o_valid": Out(1),
            "o_done": Out(1),
            "o_place": Out(row_place(geometry)),
            "o_data": Out(geometry.row_bits),
        })

    @property
    def latency(self) -> int:
        """Cycles from a narrow row's last word to its write: codes, squares, sum, two for weighing, choice."""
        return 6

    @property
    def wide_latency(self) -> int:
        """Cycles from a wide row's last word to the write of its low plane: codes, row."""
        return 2

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        group_word_bits = exact_log2(g.group // g.word)

        def group_of(tag: Any) -> Value:
            return Value.cast(tag.word[group_word_bits:]) if g.groups > 1 else Const(0)

        # tags and flags of the words at each stage
        entered, wide = self.i_valid, self.i_wide
        near, fraction = self.i_near, self.i_fraction
        valid: list[Value] = [entered & ~wide]
        tag: list[Any] = [self.i_tag]
        for s in range(self.latency):
            valid.append(Signal(name=f"valid_{s + 1}"))
            tag.append(Signal(word_tag(g), name=f"tag_{s + 1}", reset_less=True))
            m.d.sync += valid[s + 1].eq(valid[s])
            with m.If(valid[s] if s else entered):
                m.d.sync += tag[s + 1].eq(tag[s])
        zeros = self._zeros(m, valid)

        # codes into the trial rows (even and odd steps; low and high plane of a wide row), and their errors
        trial = [[Signal(signed(formats.CODE_BITS), name=f"trial_{t}_{j}", reset_less=True) for j in range(g.head_dim)]
                 for t in range(2)]
        residue = [Signal(signed(RESIDUE_BITS), name=f"residue_{p}", reset_less=True) for p in range(g.word)]
        stored = [Signal(formats.CODE_BITS, name=f"stored_{p}") for p in range(g.word)]
        for p in range(g.word):
            raw = shared(m, near[p] + zeros[0], f"raw_{p}")
            limited = shared(m, clamp(m, raw, 0, (1 << formats.CODE_BITS) - 1), f"limited_{p}")
            m.d.comb += stored[p].eq(limited - MIDDLE)
            with m.If(valid[0]):
                excess = raw - limited - fraction[p][-1]
                m.d.sync += residue[p].eq(Cat(fraction[p], excess[:formats.CODE_BITS]).as_signed())
        for plane, (parts, turn) in enumerate(((fraction, ~tag[0].step[0]), (near, tag[0].step[0]))):
            goes = Signal(name=f"goes_{plane}")
            m.d.sync += goes.eq(entered & (wide | turn))
            word = [Mux(wide, part, code) for part, code in zip(parts, stored, strict=True)]
            word = hold(m, entered, [w[:formats.CODE_BITS].as_signed() for w in word], f"word_{plane}")
            with m.If(goes), m.Switch(tag[1].word):
                for j in range(g.vector_words):
                    with m.Case(j):
                        m.d.sync += [trial[plane][j * g.word + p].eq(code) for p, code in enumerate(word)]
        square = [Signal(SQUARE_BITS, name=f"square_{p}", reset_less=True) for p in range(g.word)]
        with m.If(valid[1]):
            m.d.sync += [s.eq(r * r) for s, r in zip(square, residue, strict=True)]
        total = Signal(SQUARE_BITS + exact_log2(g.group), reset_less=True)
        with m.If(valid[2]):
            m.d.sync += total.eq(Mux(first_of_group(g, tag[2].word), 0, total) + tree(list(square)))
        ends = Signal()
        weighed = Signal(len(total) + 2 * (formats.SCALE_MANTISSA + 1) + 2, reset_less=True)
        # the candidate's scale squared, in front of the multiplier a cycle early
        square_mantissa = _squared_mantissa(m, tag[2].code[:formats.SCALE_MANTISSA])
        factor = Signal(2 * (formats.SCALE_MANTISSA + 1) + 2, reset_less=True)
        with m.If(valid[2]):
            m.d.sync += factor.eq(Mux(tag[2].octave, square_mantissa << 2, square_mantissa))
        # in two parts, each small enough for a block multiplier
        half = len(total) // 2
        parts = hold(m, valid[3], [total[:half] * factor, total[half:] * factor], "part")
        with m.If(valid[4]):
            m.d.sync += weighed.eq(parts[0] + parts[1].shift_left(half))
        m.d.sync += ends.eq(valid[4] & last_of_group(g, tag[4].word))

        # the choice
        best = [Signal(signed(formats.CODE_BITS), name=f"best_{j}", reset_less=True) for j in range(g.head_dim)]
        scales: list[Any] = [Signal(SCALE, name=f"scale_{i}", reset_less=True) for i in range(g.groups)]
        best_zeros = [Signal(formats.ZERO_BITS, name=f"zero_{i}", reset_less=True) for i in range(g.groups)]
        for i in range(g.groups):
            lanes = range(i * g.group, (i + 1) * g.group)
            least = Signal(len(weighed), name=f"least_{i}", reset_less=True)
            with m.If(ends & (group_of(tag[5]) == i) & ((tag[5].step == 0) | (weighed < least))):
                m.d.sync += [least.eq(weighed), best_zeros[i].eq(zeros[5]), *_set_scale(scales[i], tag[5])]
                m.d.sync += [best[j].eq(Mux(tag[5].step[0], trial[1][j], trial[0][j])) for j in lanes]
            with m.If(entered & wide & (group_of(tag[0]) == i)):
                m.d.sync += _set_scale(scales[i], tag[0])

        # the row
        complete, low_plane, high_plane, done = Signal(), Signal(), Signal(), Signal()
        m.d.sync += [
            complete.eq(entered & wide & (tag[0].word == g.vector_words - 1)),
            low_plane.eq(complete),
            high_plane.eq(low_plane),
            done.eq(valid[5] & (tag[5].word == g.vector_words - 1) & (tag[5].step == formats.CANDIDATES - 1)),
        ]
        place: Any = Signal(row_place(g), reset_less=True)
        following = Signal.like(place.row, name="following", reset_less=True)
        with m.If(entered & wide):
            m.d.sync += [*(place[name].eq(tag[0][name]) for name in PLACE), following.eq(tag[0].following)]
        with m.If(low_plane):
            m.d.sync += place.row.eq(following)
        two_planes = low_plane | high_plane
        m.d.comb += [self.o_valid.eq(two_planes | done), self.o_done.eq(high_plane | done)]
        m.d.comb += [self.o_place[name].eq(Mux(two_planes, place[name], tag[6][name])) for name in PLACE]
        row = data.View(row_layout(g), self.o_data)
        for j in range(g.head_dim):
            m.d.comb += row.codes[j].eq(Mux(low_plane, trial[0][j], Mux(high_plane, trial[1][j], best[j])))
        for i in range(g.groups):
            m.d.comb += [
                row.scales[i].mantissa.eq(scales[i].mantissa),
                row.scales[i].exponent.eq(Mux(low_plane, formats.LOW_PLANE, scales[i].exponent)),
                row.scales[i].sign.eq(scales[i].sign),
            ]
            if g.zero_point:
                m.d.comb += row.zeros[i].eq(Mux(two_planes, MIDDLE, best_zeros[i]))
        return m

    def _zeros(self, m: Module, valid: list[Value]) -> list[Value]:
        """Zero point of the word at each stage up to the choice; MIDDLE, which shifts nothing, unless it has one."""
        if not self.geometry.zero_point:
            return [Const(MIDDLE, formats.ZERO_BITS)] * self.latency
        zeros = [Mux(self.i_tag.zero_point, self.i_zero, MIDDLE)]
        for s in range(1, self.latency):
            zero = Signal(formats.ZERO_BITS, name=f"zero_{s}", reset_less=True)
            with m.If(valid[s - 1]):
                m.d.sync += zero.eq(zeros[-1])
            zeros.append(zero)
        return zeros


def _set_scale(scale: Any, tag: Any) -> list[Any]:
    return [
        scale.mantissa.eq(tag.code[:formats.SCALE_MANTISSA]),
        scale.exponent.eq(tag.code[formats.SCALE_MANTISSA:]),
        scale.sign.eq(tag.turned),
    ]


def _squared_mantissa(m: Module, mantissa: Value) -> Signal:
    """(8 + mantissa)^2."""
    squares = [((1 << formats.SCALE_MANTISSA) + i) ** 2 for i in range(1 << formats.SCALE_MANTISSA)]
    square = Signal(range(squares[-1] + 1))
    with m.Switch(mantissa):
        for i, value in enumerate(squares):
            with m.Case(i):
                m.d.comb += square.eq(value)
    return square
