"""Fold: what the logged tokens add to a row at a commit, one token a cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import mantissa_parts
from statecell_hw.layouts import SCALE
from statecell_hw.recurrent.delay import DelayLine
from statecell_hw.recurrent.gain import PLACE, RAISED_BITS, TOP_EXPONENT, WORKING_BITS, least
from statecell_hw.recurrent.operands import BELOW_BITS, EXPONENT_BITS, FALL_BITS, OCTAVE_BITS, WIDE_BITS
from statecell_hw.recurrent.pipeline import Handover, Pipeline

PRODUCT_BITS = WIDE_BITS + 2 * (formats.SCALE_MANTISSA + 1)
"""Signed product of a value's code with its mantissa and the key's."""
MOST_POWER = 2 * TOP_EXPONENT
POWER_BITS = 1 + BELOW_BITS
"""Signed power of two of a product: both exponents less the octaves that its factor lies above the rows' one."""
TOTAL_BITS = PRODUCT_BITS - 1 + MOST_POWER + formats.LOG_MAX.bit_length()
"""Unsigned sum of the products' magnitudes times their powers."""
SEARCH_BITS = 64
TOP_BITS = 16
"""Leading bits of a sum that meet the reciprocal of the row's mantissa."""
VALUE_FRACTION = formats.SCALE_BIAS + formats.CODE_BITS - formats.RECUR_FRACTION
"""Octaves from a value's code times mantissa to RECUR_FRACTION, at exponent 0."""
PRODUCTS = 256
"""Products that have a place between their sweep and their key's row: those of a full log and of the time between."""
SIZE = data.StructLayout({"top": TOP_BITS, "bits": SEARCH_BITS.bit_length(), "none": 1})
"""A sum: its leading bits, how many it has, whether it is 0."""


class Fold(wiring.Component):
    """Gains of a commit, one a scale group, and the working scales that they fit; docs/numerics.md, 8.6.

    First the log is loaded, ``value_en`` with ``index``, ``codes`` (8 bits, a lane per channel) and ``value_scales``,
    ``key_en`` with ``key_index``, ``key_scales`` and ``below``, the octaves that the token's factor lies above the
    rows'. A sweep takes the tokens of a channel, one a cycle: ``sweep`` with its number ``swept``, ``channel`` and,
    for the last, ``sweep_last``; ``lead`` cycles later comes the channel's row, ``valid`` with its ``scales``, and then
    a key row ``key_valid`` for each token, in the same order; the next channel may be swept meanwhile. ``raised``,
    ``exponent`` and ``fall`` follow ``raised_latency`` cycles after ``valid``, as of :class:`Gain`, ``gain``
    ``latency`` cycles after ``key_valid``; interval 1. ``octaves`` and ``shift`` are those of the rows from the cycle
    after ``swap`` on and must hold for MIN_ROWS cycles. Reset forgets the products, not the log.
    """

    value_en: Signal
    index: Signal
    codes: list[Signal]
    value_scales: Any
    key_en: Signal
    key_index: Signal
    key_scales: Any
    below: Signal
    sweep: Signal
    swept: Signal
    channel: Signal
    sweep_last: Signal
    valid: Signal
    scales: Any
    key_valid: Signal
    swap: Signal
    octaves: Signal
    shift: Signal
    raised: list[Signal]
    exponent: list[Signal]
    fall: list[Signal]
    gain: list[Signal]

    def __init__(self, geometry: Geometry, *, lead: int, raised_latency: int, latency: int) -> None:
        self.geometry = g = geometry
        self.lead, self.raised_latency, self.latency = lead, raised_latency, latency
        super().__init__({
            "value_en": In(1),
            "index": In(range(formats.LOG_MAX)),
            "codes": In(signed(WIDE_BITS)).array(g.head_dim),
            "value_scales": In(SCALE).array(g.groups),
            "key_en": In(1),
            "key_index": In(range(formats.LOG_MAX)),
            "key_scales": In(SCALE).array(g.groups),
            "below": In(BELOW_BITS),
            "sweep": In(1),
            "swept": In(range(formats.LOG_MAX)),
            "channel": In(range(g.head_dim)),
            "sweep_last": In(1),
            "valid": In(1),
            "scales": In(SCALE).array(g.groups),
            "key_valid": In(1),
            "swap": In(1),
            "octaves": In(OCTAVE_BITS),
            "shift": In(formats.STATE_SHIFT_MAX.bit_length()),
            "raised": Out(1).array(g.groups),
            "exponent": Out(WORKING_BITS).array(g.groups),
            "fall": Out(FALL_BITS).array(g.groups),
            "gain": Out(signed(formats.GAIN_BITS)).array(g.groups),
        })

    SUM_TIME = 13
    """Cycles from the last token of a sweep to the channel's sums."""
    PRODUCT_TIME = 7
    """Cycles from a token of a sweep to its products."""

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        sweep = Pipeline(m, self.sweep, self.SUM_TIME)
        rows = Pipeline(m, self.valid, self.raised_latency)
        keys = Pipeline(m, self.key_valid, self.latency)
        head = Handover(m, self.swap)
        value, exponent, of_keys = self._token(m, sweep)
        products, sums = [], []
        for i in range(g.groups):
            product, power = self._product(sweep, value, exponent, of_keys[i], i)
            products += [product, power]
            sums.append(self._sum(m, sweep, product, power, i))
        taken = self._queue(m, sweep.valid[self.PRODUCT_TIME], Cat(*products))
        held = self._held(m, Cat(*sums), self.lead + 1 - self.SUM_TIME)
        widths = PRODUCT_BITS + POWER_BITS
        for i in range(g.groups):
            size = SIZE(held.word_select(i, SIZE.size))
            self._row(m, rows, keys, head, size, taken.word_select(i, widths), i)
        return m

    def _held(self, m: Module, value: Value, cycles: int) -> Value:
        """The value of ``cycles`` before, 1 or more."""
        if cycles == 1:
            held = Signal(len(value), name="sums_held", reset_less=True)
            m.d.sync += held.eq(value)
            return held
        m.submodules.sums = line = DelayLine(len(value), cycles)
        m.d.comb += line.i.eq(value)
        return line.o

    def _token(self, m: Module, sweep: Pipeline) -> tuple[Any, Any, list[Any]]:
        """(value times mantissa at stage 5, its exponent at stage 5, the key's scales and octaves at stage 5)."""
        g = self.geometry
        scale_bits = formats.SCALE_BITS * g.groups
        values: Memory = Memory(shape=WIDE_BITS * g.head_dim + scale_bits, depth=formats.LOG_MAX, init=[])
        known: Memory = Memory(shape=scale_bits + BELOW_BITS, depth=formats.LOG_MAX, init=[])
        m.submodules.values, m.submodules.known = values, known
        write, read, keep, key = values.write_port(), values.read_port(), known.write_port(), known.read_port()
        m.d.comb += [
            write.en.eq(self.value_en), write.addr.eq(self.index),
            write.data.eq(Cat(*self.codes, *(s.as_value() for s in self.value_scales))), read.addr.eq(self.swept),
            keep.en.eq(self.key_en), keep.addr.eq(self.key_index),
            keep.data.eq(Cat(*(s.as_value() for s in self.key_scales), self.below)), key.addr.eq(self.swept),
        ]
        low = exact_log2(g.group) // 2
        channel = sweep.hold(0, self.channel, "channel")
        part = sweep.hold(1, read.data[:WIDE_BITS * g.head_dim].word_select(channel[low:], WIDE_BITS << low), "part")
        scale = sweep.hold(1, read.data[WIDE_BITS * g.head_dim:].word_select(
            channel[exact_log2(g.group):], formats.SCALE_BITS) if g.groups > 1 else read.data[-formats.SCALE_BITS:],
            "value_scale")
        code = sweep.hold(2, part.word_select(sweep.hold(1, channel[:low], "lane"), WIDE_BITS).as_signed(), "code")
        scale = sweep.hold(2, scale, "value_scale")
        halves = [sweep.hold(3, p, f"value_half_{i}")
                  for i, p in enumerate(mantissa_parts(code, scale[:formats.SCALE_MANTISSA]))]
        total = halves[0] + halves[1]
        turned = sweep.hold(3, scale[-1], "value_turned")
        value_bits = PRODUCT_BITS - formats.SCALE_MANTISSA - 1
        value = sweep.hold(4, Mux(turned, -total, total)[:value_bits].as_signed(), "value")
        exponent = sweep.carry(3, scale[formats.SCALE_MANTISSA:-1], 5, "value_exponent")
        own = sweep.carry(1, key.data, 5, "key")
        below = own[scale_bits:]
        return value, exponent, [Cat(own.word_select(i, formats.SCALE_BITS), below) for i in range(g.groups)]

    def _product(self, sweep: Pipeline, value: Any, exponent: Any, key: Any, i: int) -> tuple[Any, Any]:
        """(product, its power of two) at stage 7."""
        scale, below = key[:formats.SCALE_BITS], key[formats.SCALE_BITS:]
        halves = [sweep.hold(5, p, f"half_{i}_{n}")
                  for n, p in enumerate(mantissa_parts(value, scale[:formats.SCALE_MANTISSA]))]
        turned = sweep.hold(5, scale[-1], f"turned_{i}")
        both = sweep.hold(5, exponent + scale[formats.SCALE_MANTISSA:-1], f"both_{i}")
        power = sweep.hold(6, (both - sweep.hold(5, below, f"below_{i}"))[:POWER_BITS].as_signed(), f"power_{i}")
        total = halves[0] + halves[1]
        return sweep.hold(6, Mux(turned, -total, total)[:PRODUCT_BITS].as_signed(), f"product_{i}"), power

    def _sum(self, m: Module, sweep: Pipeline, product: Any, power: Any, i: int) -> Value:
        """SIZE of the sum of a sweep's magnitudes, at SUM_TIME of its last token."""
        at = self.PRODUCT_TIME
        size = sweep.hold(at, Mux(product[-1], -product, product)[:PRODUCT_BITS - 1], f"magnitude_{i}")
        right = MOST_POWER - power
        limit = (1 << BELOW_BITS) - 1
        right = sweep.hold(at, Mux(right > limit, limit, right)[:BELOW_BITS], f"away_{i}")
        coarse = sweep.hold(at + 1, size.shift_left(MOST_POWER) >> (right[3:] << 3), f"far_{i}")
        fine = sweep.hold(at + 1, right[:3], f"near_{i}")
        term = sweep.hold(at + 2, coarse >> fine, f"term_{i}")
        first = sweep.carry(0, self.swept == 0, at + 3, f"first_{i}")
        total = Signal(TOTAL_BITS, name=f"total_{i}", reset_less=True)
        with m.If(sweep.valid[at + 3]):
            m.d.sync += total.eq(Mux(first, 0, total) + term)
        # the leading one, in two steps
        shifted: Value = total.shift_left(SEARCH_BITS - TOTAL_BITS)
        zeros: Value = Const(0, 0)
        for stage, steps in enumerate(((32, 16, 8), (4, 2, 1))):
            for step in steps:
                none = ~shifted[-step:].any()
                shifted, zeros = Mux(none, shifted << step, shifted)[:SEARCH_BITS], Cat(none, zeros)
            held, known = (Signal(len(x), name=f"{name}_{i}_{stage}", reset_less=True)
                           for name, x in (("led", shifted), ("zeros", zeros)))
            m.d.sync += [held.eq(shifted), known.eq(zeros)]
            shifted, zeros = held, known
        return Cat(shifted[-TOP_BITS:], (TOTAL_BITS - zeros)[:SEARCH_BITS.bit_length()], ~shifted[-1])

    def _queue(self, m: Module, pushes: Value, products: Value) -> Any:
        """The products of a key's row a cycle after ``key_valid``, in the order in which they were made."""
        memory: Memory = Memory(shape=len(products), depth=PRODUCTS, init=[])
        m.submodules.products = memory
        write, read = memory.write_port(), memory.read_port()
        made, taken = Signal(range(PRODUCTS)), Signal(range(PRODUCTS))
        m.d.sync += [made.eq(made + pushes), taken.eq(taken + self.key_valid)]
        m.d.comb += [write.en.eq(pushes), write.addr.eq(made), write.data.eq(products), read.addr.eq(taken)]
        return read.data

    def _row(self, m: Module, rows: Pipeline, keys: Pipeline, head: Handover, size: Any, product: Value,
             i: int) -> None:
        """Working scale of a row, then the gains of its keys."""
        scale = self.scales[i]
        octaves, shift = self.octaves, head.at(1, self.shift, f"shift_{i}")
        lower = rows.hold(0, Mux(scale.exponent > octaves, scale.exponent - octaves, 0)[:EXPONENT_BITS], f"lower_{i}")
        down = rows.hold(0, Mux(octaves > scale.exponent, octaves - scale.exponent, 0)[:OCTAVE_BITS], f"down_{i}")
        reciprocal = rows.hold(0, Array(formats.SCALE_RECIPROCALS)[scale.mantissa], f"reciprocal_{i}")
        sign = rows.hold(0, scale.sign, f"sign_{i}")
        half = TOP_BITS // 2
        parts = [rows.hold(1, size.top * x, f"top_{i}_{n}")
                 for n, x in enumerate((reciprocal[:half], reciprocal[half:]))]
        # top times reciprocal has 2 TOP_BITS - 2 or one more bits
        carries = rows.hold(2, (parts[0] + (parts[1] << half))[2 * TOP_BITS - 2], f"carries_{i}")
        bits = rows.carry(1, size.bits, 3, f"bits_{i}")
        none = rows.carry(1, size.none, 3, f"none_{i}")
        # size - place - 12; the sum has bits + TOP_BITS - 2 + carries, less VALUE_FRACTION
        place = rows.hold(1, lower + shift, f"place_{i}")
        limit = rows.hold(2, place + (PLACE + 12 + VALUE_FRACTION + 2 - TOP_BITS), f"limit_{i}")
        above = rows.hold(3, Mux(none, 0, bits + carries) - limit, f"above_{i}")
        raised = rows.hold(4, Mux(above > 0, above, 0)[:RAISED_BITS], f"raised_{i}")
        lower, down = rows.carry(1, lower, 5, f"lower_{i}"), rows.carry(1, down, 5, f"down_{i}")
        base = rows.hold(5, raised + rows.carry(2, place, 5, f"base_{i}") + (PLACE + VALUE_FRACTION - 1), f"base_{i}")
        until = self.raised_latency
        m.d.comb += [
            self.exponent[i].eq(rows.carry(6, rows.hold(5, lower + raised, f"working_{i}"), until, f"working_{i}")),
            self.raised[i].eq(rows.carry(6, rows.hold(5, raised.any(), f"is_raised_{i}"), until, f"is_raised_{i}")),
            self.fall[i].eq(rows.carry(6, rows.hold(5, least(raised + down, formats.UPDATE_BITS), f"fall_{i}"),
                                       until, f"fall_{i}")),
        ]
        # a row's registers of stage 1 and of stage 6 are those of its key rows at stages 1 and 5: the next row comes
        # a cycle or more after the last of them
        power = keys.carry(1, product[PRODUCT_BITS:].as_signed(), 5, f"key_power_{i}")
        number = product[:PRODUCT_BITS].as_signed()
        halves = [keys.hold(1, number * x, f"weighed_{i}_{n}")
                  for n, x in enumerate((reciprocal[:half], reciprocal[half:]))]
        total = keys.hold(2, halves[0] + (halves[1] << half), f"weighed_{i}")
        turned = keys.carry(1, sign, 3, f"key_turned_{i}")
        total = keys.hold(3, Mux(turned, -total, total), f"turned_{i}")
        total = keys.carry(4, total, 6, f"turned_{i}")
        right = base - power
        limit_right = formats.LOST_MAX
        right = keys.hold(5, Mux(right > limit_right, limit_right, right)[:BELOW_BITS], f"right_{i}")
        coarse = keys.hold(6, total >> (right[3:] << 3), f"coarse_{i}")
        fine = keys.hold(6, right[:3], f"fine_{i}")
        shifted = keys.hold(7, (coarse >> fine)[:formats.GAIN_BITS + 1].as_signed(), f"shifted_{i}")
        gain = keys.hold(8, ((shifted + 1) >> 1)[:formats.GAIN_BITS].as_signed(), f"gain_{i}")
        m.d.comb += self.gain[i].eq(keys.carry(9, gain, self.latency, f"gain_{i}"))
