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


def back(x: list[int], group: int, fraction: int) -> list[int]:
    filled = x + [0] * (-len(x) % group)
    out = []
    for i in range(0, len(filled), group):
        codes, sign, mantissa, exponent = eight_bit(filled[i:i + group])
        out += [nearest(c * sign * mantissa * TWO ** (exponent - 10 + fraction)) for c in codes]
    return out[: len(x)]


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
class Head:
    """storage int4, int8 or residual; scales fresh, held or supplied; interval > 1 keeps a log of (k, d, weights)."""

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
    rows: list[Row] = field(default_factory=list)
    factor: list[int] = field(default_factory=list)
    log: list[tuple[list[int], list[int], list[int]]] = field(default_factory=list)
    skipped: int = 0
    rescaled: int = 0

    def __post_init__(self) -> None:
        groups = self.dim // self.group
        self.rows = [Row([0] * self.dim, [0] * groups) for _ in range(self.channels)]
        self.factor = [1 << 23] * (self.dim if self.lane_decay else 1)
        if self.storage != "residual":
            self.feedback = 16

    @property
    def gain(self) -> int:
        log = self.dim.bit_length() - 1
        return 2 * (log // 2) - log if self.rotated else 0

    def at(self, values: list[int], lane: int) -> int:
        return values[lane] if self.lane_decay else values[0]

    def read(self, vector: list[int]) -> list[int]:
        codes, sign, mantissa, exponent = stationary(vector, self.query_bits)
        out = []
        for row in self.rows:
            total = 0
            for g, scale in enumerate(row.scales):
                lanes = range(g * self.group, (g + 1) * self.group)
                seen = [(c + 8 >> 4) * 16 if self.storage == "residual" else c for c in row.codes]
                dot = sum(seen[i] * codes[i] for i in lanes) * (8 + scale % 8) * (-1 if scale & 128 else 1)
                # state code / 16, scale 2^-6; query 2^-6 and its extra bits; half the factor; key fraction; 6 + 4 bits
                power = (scale >> 3 & 15) - 6 - 4 + exponent - 6 - (self.query_bits - 4) + 1 - 14 + 6 + 4
                total += clamp(math.floor(dot * TWO ** (power + self.shift + self.gain)), 28)
            out.append(clamp(half_up(total * sign * mantissa, 4), 24))
        return out

    def mixed(self, x: list[int], y: list[int], gain: int) -> int:
        return clamp(nearest(sum(a * b for a, b in zip(x, y, strict=True)) * TWO ** (16 - 28 + gain)), 24)

    def logged(self, x: list[int], weights: list[list[int]]) -> list[int]:
        out = [0] * self.channels
        for (key, value, _), weight in zip(self.log, weights, strict=True):
            keyed = [nearest(Fraction(v * self.at(weight, i), 1 << 24)) for i, v in enumerate(key)]
            c = self.mixed(x, keyed, self.gain)
            out = [o + c * d for o, d in zip(out, value, strict=True)]
        return out

    def step(self, q: list[int], k: list[int], b: list[int], v: list[int], decay: list[int], beta: int,
             supplied: list[list[int]] | None = None) -> list[int]:
        frozen = beta == 0 and all(g == 1 << 24 for g in decay)
        before, after = self.factor, [max(1, nearest(Fraction(f * g, 1 << 24)))
                                      for f, g in zip(self.factor, decay, strict=True)]
        mix = self.mixed(q, b, 0)
        if self.rotated:
            q, k = rotate(q), rotate(k)
        q_factor = after if self.decay_first else before
        o = self.read([nearest(Fraction(x * self.at(q_factor, i), 1 << 24)) for i, x in enumerate(q)])
        r = self.read([nearest(Fraction(x * self.at(after, i), 1 << 24)) for i, x in enumerate(k)])
        old = [w for _, _, w in self.log]
        new = [[max(1, nearest(Fraction(x * g, 1 << 24))) for x, g in zip(w, decay, strict=True)] for w in old]
        share_o, share_r = self.logged(q, new if self.decay_first else old), self.logged(k, new)
        self.log = [(key, value, w) for (key, value, _), w in zip(self.log, new, strict=True)]
        r = [clamp(x + half_up(s, 16), 24) for x, s in zip(r, share_r, strict=True)]
        error = [clamp(x * 64 - y, 24) if self.delta else x * 64 for x, y in zip(v, r, strict=True)]
        d = [clamp(half_up(beta * e, 14), 24) for e in error]
        o = [clamp(x + half_up(s + mix * y, 16), 24) for x, s, y in zip(o, share_o, d, strict=True)]
        self.factor = after
        if frozen:
            self.skipped += 1
        elif self.interval == 1:
            self.write([(k, d)], supplied, False)
        else:
            value = back([clamp(half_up(x, 6), 16) for x in d], self.group, 6)
            self.log.append((back(k, self.group, 0), value, [1 << 24] * len(decay)))
        return o

    def commit(self, supplied: list[list[int]] | None = None, fresh: bool = False) -> None:
        entries = [([nearest(Fraction(x * self.at(w, i), 1 << 24)) for i, x in enumerate(key)], value)
                   for key, value, w in self.log]
        self.log = []
        if entries or fresh:
            self.write(entries, supplied, fresh)

    def write(self, entries: list[tuple[list[int], list[int]]], supplied: list[list[int]] | None, fresh: bool) -> None:
        octaves = [24 - f.bit_length() for f in self.factor]
        self.factor = [f << n for f, n in zip(self.factor, octaves, strict=True)]
        keys = [[nearest(Fraction(x * inverse(self.at(self.factor, i)), 1 << 17)) for i, x in enumerate(key)]
                for key, _ in entries]
        for j, row in enumerate(self.rows):
            for g in range(len(row.scales)):
                lanes = slice(g * self.group, (g + 1) * self.group)
                parts = [eight_bit(key[lanes]) for key in keys]
                given = supplied[j][g] if supplied is not None and self.scales == "supplied" else None
                fall = octaves[lanes] if self.lane_decay else []
                row.codes[lanes], row.scales[g] = self.group_written(
                    row.codes[lanes], row.scales[g], parts, [value[j] for _, value in entries],
                    0 if self.lane_decay else octaves[0], fall, None if fresh else given, fresh,
                    range(lanes.start, lanes.stop))
            self.noise = lfsr(self.noise, 32)

    def group_written(self, codes: list[int], scale: int, keys: list[tuple[list[int], int, int, int]],
                      values: list[int], octaves: int, fall: list[int], given: int | None, fresh: bool,
                      lanes: range) -> tuple[list[int], int]:
        one_plane = self.storage == "int4"
        mantissa, sign = 8 + scale % 8, -1 if scale & 128 else 1
        exponent = (scale >> 3 & 15) - octaves
        down, exponent = max(0, -exponent), max(0, exponent)
        # value (6 bits) * key (2^-10, 14 fraction bits) / row scale (reciprocal 2^-18), lanes 2^-8, gain 2^-8
        gains = [value * s * m * sign * round(Fraction(1 << 18, mantissa)) for value, (_, s, m, _) in
                 zip(values, keys, strict=True)]
        total = sum(abs(a) >> (14 - e) for a, (_, _, _, e) in zip(gains, keys, strict=True))
        place = exponent + self.shift + 6 + 10 + 14 + 18 - 6 - 8 - 8
        raised = max(0, total.bit_length() + 14 - place - 12)
        weights = [nearest(a * TWO ** (e - place - raised)) for a, (_, _, _, e) in zip(gains, keys, strict=True)]
        x = []
        for i, code in enumerate(codes):
            high = code + 8 >> 4
            start = (high << 8) + (code - 16 * high) * self.feedback
            start >>= min(14, raised + down + (fall[i] if fall else 0))
            x.append(start + (sum(w * key[0][i] for w, key in zip(weights, keys, strict=True)) >> 8))
        exponent += raised
        new, new_sign = self.chosen(x, mantissa, exponent, raised, sign, given, fresh)
        ratio = round(Fraction(4096 * mantissa, 8 + new % 8)) * sign * new_sign
        apart = (new >> 3) - exponent
        right = min(30, max(-15, min(40, apart)) + (20 if one_plane else 16))
        out = []
        for lane, value in zip(lanes, x, strict=True):
            bias = 1 << (right - 1)
            if self.stochastic:
                first = lane % 32
                bias = (((self.noise >> first) | (self.noise << (32 - first))) & 255) << right >> 8
            code = value * ratio + bias >> right
            out.append(max(-8, min(7, code)) * 16 if one_plane else max(-128, min(119, code)))
        return out, new + (128 if new_sign < 0 else 0)

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
