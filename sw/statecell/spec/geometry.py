"""Geometry of one device: every size that hardware, driver and golden model share, and every width derived from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from statecell.spec import formats
from statecell.spec.commands import Info

STATES_PLACE = 16
"""First bit of the states in INFO's features."""
MAX_LANES = 16
"""Most query lanes that the ATTEND command can address (its exponent block is 16 bytes)."""


class GeometryError(ValueError):
    """A geometry whose parameters do not fit together; the message names the parameter and what it may be."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise GeometryError(message)


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Sizes of a device.

    Parameters
    ----------
    name: name of the configuration.
    head_dim: lanes of a row, the width of one K or V vector; 32, 64 or 128.
    rows: rows of each bank (key and value) in one tile; a multiple of ``page_rows``.
    lanes: query lanes M served by one pass, 1 to 16.
    tiles: tiles that work in parallel; slot s lives in tile ``s % tiles``.
    group: lanes that share one scale; divides ``head_dim``.
    page_rows: rows of a page, a power of two.
    slots: slots of the device (sequence x layer x KV head); a multiple of ``tiles``.
    pages_per_slot: most pages that a slot can map, a power of two.
    link_bytes: bytes of one link word, 2, 4, 8 or 16; the vector units take ``link_bytes // 2`` elements a cycle.
    query_bits: bits of a stored query code, 8 to 12.
    zero_point: rows carry a 4-bit zero point per group.
    clock_hz: clock that the build runs at, in hertz; 0 in a simulator, which has no clock of its own.
    small: built as the small device, a program on one datapath, for FPGAs that the array does not fit: one tile of
        head_dim and group 32, at most 4 lanes, link_bytes 2, no zero points, no states, at most 256 rows in a slot and
        2,048 in all, at most 64 slots and 512 pages in their lists.
    states: slots, the first ones, that can be opened for a recurrent state, 0 without; needs one tile.
    """

    name: str
    head_dim: int
    rows: int
    lanes: int
    slots: int
    pages_per_slot: int
    tiles: int = 1
    group: int = 32
    page_rows: int = 16
    link_bytes: int = 16
    query_bits: int = 8
    zero_point: bool = False
    clock_hz: int = 0
    small: bool = False
    states: int = 0

    def __post_init__(self) -> None:
        _require(self.head_dim in (32, 64, 128), f"head_dim is {self.head_dim}; it must be 32, 64 or 128")
        _require(1 <= self.lanes <= MAX_LANES, f"lanes is {self.lanes}; it must be 1 to {MAX_LANES}")
        _require(_power_of_two(self.tiles), f"tiles is {self.tiles}; it must be a power of two")
        _require(self.group >= 8 and self.head_dim % self.group == 0 and _power_of_two(self.group),
                 f"group is {self.group}; it must be a power of two from 8 that divides head_dim ({self.head_dim})")
        _require(_power_of_two(self.page_rows) and self.page_rows >= 2,
                 f"page_rows is {self.page_rows}; it must be a power of two, at least 2")
        _require(self.rows > 0 and self.rows % self.page_rows == 0 and self.pages <= 65536,
                 f"rows is {self.rows}; it must be a multiple of page_rows ({self.page_rows}) and at most 65536 pages")
        _require(_power_of_two(self.pages_per_slot) and self.slot_rows <= 65536,
                 f"pages_per_slot is {self.pages_per_slot}; it must be a power of two with at most 65536 rows a slot")
        _require(0 < self.slots <= 65536 and self.slots % self.tiles == 0,
                 f"slots is {self.slots}; it must be 1 to 65536 and a multiple of tiles ({self.tiles})")
        _require(self.link_bytes in (2, 4, 8, 16), f"link_bytes is {self.link_bytes}; it must be 2, 4, 8 or 16")
        _require(self.group % self.word == 0, f"group ({self.group}) must be a multiple of {self.word} lanes a word")
        _require(8 <= self.query_bits <= 12, f"query_bits is {self.query_bits}; it must be 8 to 12")
        _require(0 <= self.states <= self.slots,
                 f"states is {self.states}; it must be 0 to slots ({self.slots})")
        _require(self.states == 0 or self.tiles == 1,
                 f"tiles is {self.tiles}; a device with recurrent states has one tile")
        _require(self.states == 0 or self.link_bytes >= 4,
                 f"link_bytes is {self.link_bytes}; a device with recurrent states needs at least 4")
        _require(0 <= self.clock_hz < 1 << 32, f"clock_hz is {self.clock_hz}; it must fit in 32 bits")
        if self.small:
            self._require_small()

    def _require_small(self) -> None:
        fixed = {"head_dim": 32, "group": 32, "tiles": 1, "link_bytes": 2, "zero_point": False, "states": 0}
        for name, value in fixed.items():
            _require(getattr(self, name) == value, f"{name} is {getattr(self, name)}; a small device has {value}")
        limits = {"lanes": 4, "slot_rows": 256, "rows": 2048, "slots": 64}
        for name, most in limits.items():
            _require(getattr(self, name) <= most, f"{name} is {getattr(self, name)}; a small device has at most {most}")
        _require(self.slots * self.pages_per_slot <= 512,
                 f"pages_per_slot is {self.pages_per_slot}; a small device has at most 512 pages in all slots' lists")

    # -- sizes ------------------------------------------------------------------------------------------------------
    @property
    def groups(self) -> int:
        """Scale groups of a row."""
        return self.head_dim // self.group

    @property
    def pages(self) -> int:
        """Pages of one tile."""
        return self.rows // self.page_rows

    @property
    def slot_rows(self) -> int:
        """Most rows that one slot can hold."""
        return self.pages_per_slot * self.page_rows

    @property
    def tile_slots(self) -> int:
        """Slots of one tile."""
        return self.slots // self.tiles

    @property
    def word(self) -> int:
        """Vector elements carried by one link word."""
        return self.link_bytes * 8 // formats.VECTOR_BITS

    @property
    def vector_words(self) -> int:
        """Link words of one vector."""
        return self.head_dim // self.word

    @property
    def row_bits(self) -> int:
        """Bits of one stored row: codes, scales, zero points."""
        zero = formats.ZERO_BITS if self.zero_point else 0
        return self.head_dim * formats.CODE_BITS + self.groups * (formats.SCALE_BITS + zero)

    @property
    def row_bytes(self) -> int:
        """Bytes of one raw row in a READ_ROWS or WRITE_ROWS payload: whole blocks of 16."""
        return -(-self.row_bits // 128) * 16

    @property
    def bits_per_element(self) -> float:
        """Stored bits of one K or V element in a one-plane row, scales and zero points included."""
        return self.row_bits / self.head_dim

    # -- derived widths -----------------------------------------------------------------------------------------------
    @property
    def rotate_shift(self) -> int:
        """Right shift after the forward Walsh-Hadamard transform, floor(log2(d) / 2)."""
        return (self.head_dim.bit_length() - 1) // 2

    @property
    def query_fraction(self) -> int:
        """Bits that a query code has beyond a 4-bit code."""
        return self.query_bits - formats.CODE_BITS

    @property
    def effective_bits(self) -> int:
        """Bits of a code with its zero point applied."""
        return formats.CODE_BITS + (1 if self.zero_point else 0)

    @property
    def sum_bits(self) -> int:
        """Bits by which a sum over the most rows of a slot can exceed one term."""
        return self.slot_rows.bit_length() - 1

    @property
    def dot_bits(self) -> int:
        """Signed width of one group's dot product."""
        return self.query_bits + self.effective_bits + self.group.bit_length() - 1

    @property
    def accumulator_bits(self) -> int:
        """Signed width of one accumulator: weight x code summed over a slot's rows."""
        return formats.WEIGHT_BITS + self.effective_bits + self.sum_bits + 1

    @property
    def normaliser_bits(self) -> int:
        """Unsigned width of the sum of softmax weights."""
        return formats.WEIGHT_BITS + self.sum_bits + 1

    @property
    def transform_bits(self) -> int:
        """Signed width inside the Walsh-Hadamard transform."""
        return formats.OUTPUT_BITS + self.head_dim.bit_length() - 1

    @property
    def features(self) -> int:
        """What INFO says of the device's abilities."""
        return int(self.zero_point) | self.states << STATES_PLACE

    def as_dict(self) -> dict[str, object]:
        """Parameters only, as plain values."""
        return asdict(self)


CONFIGS: dict[str, Geometry] = {
    g.name: g
    for g in (
        Geometry(name="tiny", head_dim=32, rows=64, lanes=2, slots=4, pages_per_slot=8, page_rows=4, link_bytes=8),
        Geometry(name="tiny2", head_dim=32, rows=64, lanes=3, slots=4, pages_per_slot=8, page_rows=4, tiles=2,
                 zero_point=True, link_bytes=16, query_bits=10),
        Geometry(name="narrow", head_dim=32, rows=64, lanes=1, slots=2, pages_per_slot=8, page_rows=4, link_bytes=2),
        Geometry(name="wide128", head_dim=128, rows=128, lanes=2, slots=2, pages_per_slot=8, page_rows=16),
        Geometry(name="bench64", head_dim=64, rows=4096, lanes=3, slots=16, pages_per_slot=128, query_bits=12),
        Geometry(name="smollm2", head_dim=64, rows=131072, lanes=3, slots=256, pages_per_slot=128, query_bits=12),
        Geometry(name="glassllm", head_dim=32, rows=4096, lanes=2, slots=32, pages_per_slot=16),
        Geometry(name="ulx3s_85f", head_dim=64, rows=4096, lanes=3, slots=96, page_rows=4, pages_per_slot=64,
                 link_bytes=4, query_bits=12, clock_hz=87_500_000),
        Geometry(name="ecpix5_85f", head_dim=64, rows=4096, lanes=3, slots=96, page_rows=4, pages_per_slot=64,
                 link_bytes=4, query_bits=12, clock_hz=87_500_000),
        Geometry(name="orangecrab_85f", head_dim=64, rows=4096, lanes=3, slots=96, page_rows=4, pages_per_slot=64,
                 link_bytes=4, query_bits=12, clock_hz=96_000_000),
        Geometry(name="arty_a7_100", head_dim=64, rows=4096, lanes=3, slots=96, page_rows=4, pages_per_slot=64,
                 link_bytes=4, query_bits=12, clock_hz=100_000_000),
        Geometry(name="kcu105", head_dim=64, rows=16384, lanes=3, slots=96, page_rows=16, pages_per_slot=64,
                 link_bytes=4, query_bits=12, clock_hz=125_000_000),
        Geometry(name="tang_nano_20k", head_dim=32, rows=1152, lanes=2, slots=8, pages_per_slot=16, link_bytes=2,
                 clock_hz=81_000_000, small=True),
        Geometry(name="icebreaker", head_dim=32, rows=2048, lanes=2, slots=8, pages_per_slot=16, link_bytes=2,
                 clock_hz=24_000_000, small=True),
        Geometry(name="versa_ecp5_5g", head_dim=64, rows=2048, lanes=1, slots=96, page_rows=4, pages_per_slot=64,
                 link_bytes=4, query_bits=12, clock_hz=100_000_000),
        Geometry(name="recur32", head_dim=32, rows=512, lanes=2, slots=20, pages_per_slot=32, page_rows=4, link_bytes=8,
                 states=18),
        Geometry(name="hybrid", head_dim=64, rows=32768, lanes=3, slots=256, pages_per_slot=512, query_bits=12,
                 states=192),
        Geometry(name="recur128", head_dim=128, rows=4096, lanes=2, slots=48, pages_per_slot=128, query_bits=12,
                 states=32),
    )
}
"""The named configurations."""


def of_info(info: Info) -> Geometry:
    """The geometry that a device's INFO tells. Raises GeometryError if no device can have it."""
    return Geometry(
        name="device", head_dim=info.head_dim, rows=info.rows, lanes=info.lanes, slots=info.slots, tiles=info.tiles,
        pages_per_slot=info.pages_per_slot, group=info.group, page_rows=info.page_rows, link_bytes=info.link_bytes,
        query_bits=info.query_bits, zero_point=bool(info.features & 1), clock_hz=info.clock_hz,
        states=info.features >> STATES_PLACE,
    )


def config(name: str) -> Geometry:
    """The configuration called ``name``; GeometryError names the known ones otherwise."""
    try:
        return CONFIGS[name]
    except KeyError:
        raise GeometryError(f"there is no configuration {name!r}; choose one of {', '.join(CONFIGS)}") from None
