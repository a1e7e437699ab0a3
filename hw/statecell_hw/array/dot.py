"""Dot unit: the queries of a pass stand still in registers while one key row a cycle streams past them."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import hold
from statecell_hw.array.multiply import Multiplier, key_form, partial, stages, tree
from statecell_hw.array.rowstream import GAP
from statecell_hw.layouts import QueryLoad

RADIX = 4
"""Terms that one pipeline stage of the adder tree adds up."""


class Dot(wiring.Component):
    """Dot products of ``lanes`` queries with one row per cycle, one per scale group; exact.

    ``dots`` [lane][group] is valid ``latency`` cycles after ``valid`` and ``codes``; interval 1.

    Queries are loaded into shadow registers: ``load`` may be valid only while ``load_ready`` is high, which says that
    the shadow of ``load.lane`` is free (combinational). ``full`` has the lanes whose shadow holds a query. ``swap``, in
    the cycle before a pass's first row, makes the shadows the active queries and frees them; ``query_sign``,
    ``query_mantissa`` and ``query_exponent`` show the active queries' scales from the next cycle on.
    ``drop`` frees the shadows without making them active.

    Parameters: ``code_bits``, signed width of a code, the geometry's unless given; ``sets``, 1 or 2: with two the lanes
    from the middle up are a second set, and a row meets the lower or, with ``upper``, the upper half of the lanes.
    """

    valid: Signal
    upper: Signal
    codes: list[Signal]
    load: wiring.FlippedInterface
    load_ready: Signal
    full: Signal
    swap: Signal
    drop: Signal
    dots: list[list[Signal]]
    query_sign: list[Signal]
    query_mantissa: list[Signal]
    query_exponent: list[Signal]

    def __init__(
        self, geometry: Geometry, *, multiplier: Multiplier = "native", code_bits: int | None = None,
        sets: int = 1,
    ) -> None:
        self.geometry = g = geometry
        self.multiplier: Multiplier = multiplier
        self.sets = sets
        self.code_bits = code_bits or g.effective_bits
        dot_bits = g.dot_bits - g.effective_bits + self.code_bits
        super().__init__({
            "valid": In(1),
            **({"upper": In(1)} if sets > 1 else {}),
            "codes": In(signed(self.code_bits)).array(g.head_dim),
            "load": In(QueryLoad(g)),
            "load_ready": Out(1),
            "full": Out(g.lanes),
            "swap": In(1),
            "drop": In(1),
            "dots": Out(signed(dot_bits)).array(self.products, g.groups),
            "query_sign": Out(1).array(g.lanes),
            "query_mantissa": Out(formats.SCALE_MANTISSA).array(g.lanes),
            "query_exponent": Out(formats.SCALE_BITS - formats.SCALE_MANTISSA - 1).array(g.lanes),
        })

    @property
    def products(self) -> int:
        """Queries that a row meets."""
        return self.geometry.lanes // self.sets

    @property
    def latency(self) -> int:
        """Cycles from a row to its dot products: the products' levels, one per four-way level of the tree."""
        levels, terms = 0, self.geometry.group
        while terms > 1:
            levels, terms = levels + 1, -(-terms // RADIX)
        return self._product_levels + levels

    @property
    def _product_levels(self) -> int:
        return stages(self.code_bits, key_form(self.multiplier, 0, self.products))

    @property
    def gap(self) -> int:
        """Fewest idle cycles between the rows of two query sets."""
        return self._product_levels - 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        valid = [self.valid]
        for i in range(1, self.latency):
            valid.append(Signal(name=f"valid_{i}"))
            m.d.sync += valid[i].eq(valid[i - 1])
        m.d.comb += self.load_ready.eq(~self.full.bit_select(self.load.lane, 1))
        with m.If(self.swap | self.drop):
            m.d.sync += self.full.eq(0)
        levels = self._product_levels
        # only the codes need a delay: a swap comes after the gap, when no row of the pass before is in the products
        assert self.gap < GAP
        codes: list[list[Value]] = [list(self.codes)]
        for stage in range(levels - 1):
            codes.append(hold(m, valid[stage], codes[-1], f"code_{stage}"))
        queries = [self._queries(m, lane) for lane in range(g.lanes)]
        upper: list[list[Value]] = [[self.upper] if self.sets > 1 else []]
        for stage in range(levels - 1):
            upper.append(hold(m, valid[stage], upper[-1], f"upper_{stage}"))
        for lane in range(self.products):
            form = key_form(self.multiplier, lane, self.products)
            sets = queries[lane::self.products]

            def active(stage: int, j: int, sets: list[list[Signal]] = sets) -> Value:
                return Mux(upper[stage][0], sets[1][j], sets[0][j]).as_signed() if len(sets) > 1 else sets[0][j]

            held: list[Signal] = []
            if form == "block":
                # a register more that a hardware multiplier has inside: its codes come a level later
                held = [Signal(signed(g.query_bits), name=f"operand_{lane}_{j}", reset_less=True)
                        for j in range(g.head_dim)]
                m.d.sync += [h.eq(active(0, j)) for j, h in enumerate(held)]
            for group in range(g.groups):
                members = range(group * g.group, (group + 1) * g.group)
                terms: list[Value] = []
                for stage in range(self.latency):
                    if stage < levels:
                        before: Sequence[Value | None] = terms or [None] * len(members)
                        terms = [partial(stage, held[j] if held else active(stage, j), codes[stage][j], b, form)
                                 for j, b in zip(members, before, strict=True)]
                    else:
                        terms = [tree(list(terms[i:i + RADIX])) for i in range(0, len(terms), RADIX)]
                    terms = hold(m, valid[stage], terms, f"sum_{lane}_{group}_{stage}")
                m.d.comb += self.dots[lane][group].eq(terms[0])
        return m

    def _queries(self, m: Module, lane: int) -> list[Signal]:
        g = self.geometry
        names = [f"{lane}_{j}" for j in range(g.head_dim)]
        shadow = [Signal(signed(g.query_bits), name=f"shadow_{n}", reset_less=True) for n in names]
        active = [Signal(signed(g.query_bits), name=f"active_{n}", reset_less=True) for n in names]
        scale = (self.query_sign[lane], self.query_mantissa[lane], self.query_exponent[lane])
        shadow_scale = [Signal.like(s, name=f"shadow_{lane}_{s.name}", reset_less=True) for s in scale]
        with m.If(self.load.valid[lane]):
            m.d.sync += [s.eq(self.load.codes[j]) for j, s in enumerate(shadow)]
            given = (self.load.sign, self.load.mantissa, self.load.exponent)
            m.d.sync += [s.eq(x) for s, x in zip(shadow_scale, given, strict=True)]
            m.d.sync += self.full[lane].eq(1)
        with m.If(self.swap):
            m.d.sync += [a.eq(s) for a, s in zip(active, shadow, strict=True)]
            m.d.sync += [a.eq(s) for a, s in zip(scale, shadow_scale, strict=True)]
        return active
