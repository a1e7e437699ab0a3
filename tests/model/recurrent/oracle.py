"""One head's recurrent step in plain Python integers, row by row: docs/numerics.md, section 8, read aloud.

It shares no code and no table with statecell.model and is the oracle that the vectorised model is checked against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from tests.model.oracle import clamp, first_scale, half_up, rotate, stationary

TWO = Fraction(2)


def nearest(x: Fraction | int) -> int:
    return math.floor(x + Fraction(1, 2))


def least_scale(magnitude: int) -> int:
    if magnitude == 0:
        return 0
    scale = 0
    while 8 * (8 + scale % 8) * TWO ** (scale // 8 - 6) < magnitude:
        scale += 1
    return scale


def eight_bit(x: list[int]) -> tuple[list[int], int, int, int]:
    """(codes, sign, mantissa, exponent) of one group."""
    high, low = max(0, *x), max(0, *(-v for v in x))
    sign = -1 if high >= low else 1
    scale = first_scale(max(high, low))
    reciprocal = round(Fraction(1 << 18, 8 + scale % 8))
    codes = [max(-128, min(119, half_up(sign * v * reciprocal >> (12 + scale // 8 - 5), 1))) for v in x]
    return codes, sign, 8 + scale % 8, scale // 8


def eight_bits(x: list[int], group: int) -> list[tuple[list[int], int, int, int]]:
    filled = x + [0] * (-len(x) % group)
    return [eight_bit(filled[i:i + group]) for i in range(0, len(filled), group)]


def back(parts: list[tuple[list[int], int, int, int]]) -> list[int]:
    return [nearest(c * s * m * TWO ** (e - 10)) for codes, s, m, e in parts for c in codes]


def inverse(factor: int) -> int:
    fraction = factor >> 7 & 0xFFFF
    base = [round(Fraction(1 << 24, 128 + i)) for i in range(129)]
    piece, rest = fraction >> 9, fraction & 511
    return base[piece] - ((base[piece] - base[piece + 1]) * rest >> 9)


def lfsr(state: int, count: int) -> int:
    for _ in range(count):
        out = state & 1
        state >>= 1
        if out:
            state ^= (1 << 31) | (1 << 21) | (1 << 1) | (1 << 0)
    return state


@dataclass
class Row:
    codes: list[int]  # 8-bit codes, a one-plane row's are multiples of 16
    scales: list[int]


@dataclass
class Entry:
    key: list[tuple[list[int], int, int, int]]  # groups: codes, sign, mantissa, exponent
    value: list[tuple[list[int], int, int, int]]
    lost: int  # octaves of the head's one factor at its token
    weights: list[int]  # with a decay per lane: product of the decays since


@dataclass
class Head:
    """storage int4, int8 or residual; scales fresh, held or supplied; interval > 1 keeps a log. dim: lanes of a key, of
    which a row of the array holds all or, with two halves, the half.
    """

    dim: int
    group: int
    query_bits: int
    channels: int
    storage: str
    scales: str
    stochastic: bool
    interval: int
    rotated: bool
    delta: bool
    decay_first: bool
    lane_decay: bool
    feedback: int
    shift: int
    noise: int
    halves: int = 1
    rows: list[Row] = field(default_factory=list)
    factor: list[int] = field(default_factory=list)
    lost: int = 0
    log: list[Entry] = field(default_factory=list)
    skipped: int = 0
    rescaled: int = 0

    def __post_init__(self) -> None:
        groups = self.dim // self.group
        self.rows = [Row([0] * self.dim, [0] * groups) for _ in range(self.channels)]
        self.factor = [1 << 23] * (self.dim if self.lane_decay else 1)
        if self.storage != "residual":
            self.feedback = 16

    @property
    def lanes(self) -> int:
        return self.dim // self.halves

    def split(self, x: list[int]) -> list[list[int]]:
        return [x[at:at + self.lanes] for at in range(0, self.dim, self.lanes)]

    @property
    def gain(self) -> int:
        log = self.lanes.bit_length() - 1
        return 2 * (log // 2) - log if self.rotated else 0

    def at(self, values: list[int], lane: int) -> int:
        return values[lane] if self.lane_decay else values[0]

    def product(self, groups: list[tuple[list[int], int, int, int]], queries: list[tuple], power: int) -> int:
        """One row with a query for each half; ``power``: octaves that the result is shifted left."""
        total = 0
        for g, (row, s, m, e) in enumerate(groups):
            half, at = divmod(g * self.group, self.lanes)
            codes, sign, mantissa, exponent = queries[half]
            dot = sum(c * q for c, q in zip(row, codes[at:at + self.group], strict=True)) * m * s
            # state code / 16, scale 2^-6; query 2^-6 and its extra bits; half the factor; key fraction; 6 + 4 bits
            own = e - 6 - 4 + exponent - 6 - (self.query_bits - 4) + 1 - 14 + 6 + 4
            total += clamp(math.floor(dot * TWO ** (own + power + self.gain)), 28) * sign * mantissa
        return clamp(half_up(total, 4), 24)

    def read(self, vector: list[int], lost: int) -> tuple[list[int], list[int]]:
        """Products of the rows and of the logged keys."""
        query = [stationary(half, self.query_bits) for half in self.split(vector)]
        rows = []
        for row in self.rows:
            seen = [(c + 8 >> 4) * 16 if self.storage == "residual" else c for c in row.codes]
            parts = [(seen[g * self.group:(g + 1) * self.group], -1 if scale & 128 else 1, 8 + scale % 8,
                      scale >> 3 & 15) for g, scale in enumerate(row.scales)]
            rows.append(self.product(parts, query, self.shift - min(63, lost)))
        # a key's LSB is 2^-14; 16 bits of fraction
        keys = [self.product(e.key, query, 16 - 6 - 14 - min(63, lost - e.lost)) for e in self.log]
        return rows, keys

    def mixed(self, x: list[int], y: list[int], gain: int) -> int:
        return clamp(nearest(sum(a * b for a, b in zip(x, y, strict=True)) * TWO ** (16 - 28 + gain)), 24)

    def of_lanes(self, x: list[int], weights: list[list[int]]) -> list[int]:
        """Products of the logged keys with a vector, with a decay per lane."""
        out = []
        for entry, weight in zip(self.log, weights, strict=True):
            keyed = [nearest(Fraction(v * w, 1 << 24)) for v, w in zip(back(entry.key), weight, strict=True)]
            out.append(self.mixed(x, keyed, self.gain))
        return out

    def share(self, mixed: list[int]) -> list[int]:
        """What the logged values add to a read-out: 20-bit weights in 2^-10 of a value LSB."""
        out = [0] * (-(-self.channels // self.group) * self.group)
        for c, entry in zip(mixed, self.log, strict=True):
            for g, (codes, s, m, e) in enumerate(entry.value):
                weight = clamp(nearest(c * s * m * TWO ** (e - 10 - 16 + 10)), 20)
                for i, code in enumerate(codes):
                    out[g * self.group + i] += weight * code
        return [clamp(half_up(x, 4), 24) for x in out][: self.channels]

    def step(self, q: list[int], k: list[int], b: list[int], v: list[int], decay: list[int], beta: int,
             supplied: list[list[int]] | None = None) -> list[int]:
        frozen = beta == 0 and all(g == 1 << 24 for g in decay)
        before, lost_before = self.factor, self.lost
        after = [max(1, nearest(Fraction(f * g, 1 << 24))) for f, g in zip(before, decay, strict=True)]
        if not self.lane_decay:
            self.lost += 24 - after[0].bit_length()
            after = [after[0] << 24 - after[0].bit_length()]
        mix = self.mixed(q, b, 0)
        if self.rotated:
            q, k = ([y for half in self.split(x) for y in rotate(half)] for x in (q, k))
        q_factor, q_lost = (after, self.lost) if self.decay_first else (before, lost_before)
        o, o_keys = self.read([nearest(Fraction(x * self.at(q_factor, i), 1 << 24)) for i, x in enumerate(q)], q_lost)
        r, r_keys = self.read([nearest(Fraction(x * self.at(after, i), 1 << 24)) for i, x in enumerate(k)], self.lost)
        if self.lane_decay:
            old = [entry.weights for entry in self.log]
            new = [[max(1, nearest(Fraction(x * g, 1 << 24))) for x, g in zip(w, decay, strict=True)] for w in old]
            o_keys, r_keys = self.of_lanes(q, new if self.decay_first else old), self.of_lanes(k, new)
            for entry, weights in zip(self.log, new, strict=True):
                entry.weights = weights
        o = [clamp(x + y, 24) for x, y in zip(o, self.share(o_keys), strict=True)]
        r = [clamp(x + y, 24) for x, y in zip(r, self.share(r_keys), strict=True)]
        error = [clamp(x * 64 - y, 24) if self.delta else x * 64 for x, y in zip(v, r, strict=True)]
        d = [clamp(half_up(beta * e, 14), 24) for e in error]
        o = [clamp(x + half_up(mix * y, 16), 24) for x, y in zip(o, d, strict=True)]
        self.factor = after
        if frozen:
            self.skipped += 1
        elif self.interval == 1:
            self.write(k, d, supplied, False)
        else:
            if not self.lane_decay:
                k = self.divided(k)
            whole = [max(-32767, min(32767, half_up(x, 6))) for x in d]
            self.log.append(Entry(eight_bits(k, self.group), eight_bits(whole, self.group), self.lost,
                                  [1 << 24] * len(decay)))
        return o

    def divided(self, key: list[int]) -> list[int]:
        return [nearest(Fraction(x * inverse(self.at(self.factor, i)), 1 << 17)) for i, x in enumerate(key)]

    def normalised(self) -> list[int]:
        """The factors brought back to 1.0 .. 2.0; what that takes from the rows."""
        octaves = [24 - f.bit_length() for f in self.factor]
        self.factor = [f << n for f, n in zip(self.factor, octaves, strict=True)]
        lost, self.lost = self.lost, 0
        return octaves if self.lane_decay else [lost]

    def commit(self, supplied: list[list[int]] | None = None, fresh: bool = False) -> None:
        if not self.log and not fresh:
            return
        lost = self.lost
        octaves = self.normalised()
        entries, self.log = self.log, []
        if self.lane_decay:
            keys = [eight_bits(self.divided([nearest(Fraction(x * w, 1 << 24))
                                             for x, w in zip(back(entry.key), entry.weights, strict=True)]), self.group)
                    for entry in entries]
        else:
            keys = [entry.key for entry in entries]
        for j, row in enumerate(self.rows):
            d = [entry.value[j // self.group] for entry in entries]
            for g in range(len(row.scales)):
                # the value's code and mantissa, the key's mantissa; octaves of both less what the factor lost since
                products = [dc[j % self.group] * ds * dm * key[g][1] * key[g][2]
                            for (dc, ds, dm, _), key in zip(d, keys, strict=True)]
                powers = [de + key[g][3] - min(63, 0 if self.lane_decay else lost - entry.lost)
                          for (_, _, _, de), key, entry in zip(d, keys, entries, strict=True)]
                total = sum(math.floor(abs(a) * TWO**p) for a, p in zip(products, powers, strict=True))
                reciprocal = round(Fraction(1 << 18, 8 + row.scales[g] % 8))
                top = math.floor(total * TWO ** (16 - total.bit_length()))
                size = total.bit_length() - 16 + (top * reciprocal).bit_length() - 4 if total else -4
                # value 2^-10 against the 6 bits of RECUR_FRACTION
                self.group_written(row, g, [key[g][0] for key in keys], [a * reciprocal for a in products],
                                   [p - 4 for p in powers], size, octaves, supplied[j][g] if supplied else None, fresh)

    def write(self, k: list[int], d: list[int], supplied: list[list[int]] | None, fresh: bool) -> None:
        octaves = self.normalised()
        key = eight_bits(self.divided(k), self.group)
        for j, row in enumerate(self.rows):
            for g, (codes, s, m, e) in enumerate(key):
                # value (6 bits) * key (2^-10, 14 fraction bits) / row scale (reciprocal 2^-18)
                a = d[j] * s * m * round(Fraction(1 << 18, 8 + row.scales[g] % 8))
                size = (abs(a) >> (14 - e)).bit_length() + 14
                self.group_written(row, g, [codes], [a], [e], size, octaves, supplied[j][g] if supplied else None,
                                   fresh)

    def group_written(self, row: Row, group: int, keys: list[list[int]], products: list[int], powers: list[int],
                      size: int, octaves: list[int], supplied: int | None, fresh: bool) -> None:
        """Codes plus the keys' times products times 2^powers, whose magnitudes add up to less than 2^size."""
        one_plane = self.storage == "int4"
        lanes, scale = range(group * self.group, (group + 1) * self.group), row.scales[group]
        given = supplied if self.scales == "supplied" and not fresh else None
        codes = row.codes[lanes.start:lanes.stop]
        mantissa, sign = 8 + scale % 8, -1 if scale & 128 else 1
        exponent = (scale >> 3 & 15) - (0 if self.lane_decay else octaves[0])
        down, exponent = max(0, -exponent), max(0, exponent)
        # lanes 2^-8, gain 2^-8
        place = exponent + self.shift + 6 + 10 + 14 + 18 - 6 - 8 - 8
        raised = max(0, size - place - 12)
        weights = [nearest(a * sign * TWO ** max(-63, p - place - raised))
                   for a, p in zip(products, powers, strict=True)]
        x = []
        for i, code in enumerate(codes):
            high = code + 8 >> 4
            start = (high << 8) + (code - 16 * high) * self.feedback
            start >>= min(14, raised + down + (octaves[lanes[i]] if self.lane_decay else 0))
            x.append(start + (sum(w * key[i] for w, key in zip(weights, keys, strict=True)) >> 8))
        exponent += raised
        new, new_sign = self.chosen(x, mantissa, exponent, raised, sign, given, fresh)
        ratio = round(Fraction(4096 * mantissa, 8 + new % 8)) * sign * new_sign
        apart = (new >> 3) - exponent
        right = min(30, max(-15, min(40, apart)) + (20 if one_plane else 16))
        for lane, value in zip(lanes, x, strict=True):
            bias = 1 << (right - 1)
            if self.stochastic:
                first = lane % 32
                bias = (((self.noise >> first) | (self.noise << (32 - first))) & 255) << right >> 8
            code = value * ratio + bias >> right
            row.codes[lane] = max(-8, min(7, code)) * 16 if one_plane else max(-128, min(119, code))
        row.scales[group] = new + (128 if new_sign < 0 else 0)
        if lanes.stop % self.lanes == 0:  # a row of the array is whole
            self.noise = lfsr(self.noise, 32)

    def chosen(self, x: list[int], mantissa: int, exponent: int, raised: int, sign: int, given: int | None,
               fresh: bool) -> tuple[int, int]:
        if given is not None:
            return given & 127, -1 if given & 128 else 1
        one_plane = self.storage == "int4"
        high, low = max(0, *x), max(0, *(-v for v in x))
        largest = max(high, low)
        renew = fresh or self.scales == "fresh"
        code = least_scale(largest * mantissa) + 8 * (exponent - 14)
        if one_plane and not renew:
            code -= 1
        new = max(0, min(119, code)), -sign if high >= low else sign
        if renew:
            return new
        top, bottom = (7 * 256 + 128, 8 * 256 + 128) if one_plane else (119 * 16 + 8, 128 * 16 + 8)
        fits = high < top and low <= bottom and raised == 0
        if fits and (largest == 0 or largest >= 2 * 256 or exponent == 0):
            return 8 * exponent + mantissa - 8, sign
        self.rescaled += given is None and self.scales != "supplied"
        return new
