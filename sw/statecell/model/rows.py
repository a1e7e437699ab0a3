"""Stored rows: codes, scale bytes and zero points, as the banks hold them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.spec import formats
from statecell.spec.geometry import Geometry


@dataclass(frozen=True)
class Rows:
    """Rows of one bank, int64 tensors: ``codes`` [..., n, d] in -8..7, ``scales`` [..., n, groups] raw bytes 0..255,
    ``zeros`` [..., n, groups] in 0..15 (8, which shifts nothing, for symmetric groups).
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor

    def __len__(self) -> int:
        return self.codes.shape[-2]

    @staticmethod
    def concatenate(parts: list[Rows]) -> Rows:
        """Rows of all parts, in order."""
        return Rows(*(torch.cat([getattr(p, name) for p in parts], -2) for name in ("codes", "scales", "zeros")))

    def take(self, index: slice | Tensor) -> Rows:
        """Rows at ``index`` of the row axis."""
        return Rows(self.codes[..., index, :], self.scales[..., index, :], self.zeros[..., index, :])

    # -- decoded fields ---------------------------------------------------------------------------------------------
    @property
    def low(self) -> Tensor:
        """True for low planes, bool [..., n]; group 0's exponent carries the mark."""
        return (self.scales[..., 0] >> formats.SCALE_MANTISSA) & 15 == formats.LOW_PLANE

    @property
    def signed_mantissa(self) -> Tensor:
        """(-1)^sign (8 + m) of the scale in force, [..., n, groups]; a low plane takes the next row's."""
        scales = self._scale_in_force()
        return torch.where(scales >= 128, -1, 1) * (8 + (scales & 7))

    @property
    def exponent(self) -> Tensor:
        """Exponent of the scale in force, [..., n, groups]; a low plane has the next row's less 4 (down to -4)."""
        exponent = (self._scale_in_force() >> formats.SCALE_MANTISSA) & 15
        return exponent - formats.CODE_BITS * self.low[..., None].to(torch.int64)

    @property
    def effective(self) -> Tensor:
        """Codes with their zero points applied, code + 8 - z, int64 [..., n, d]."""
        group = self.codes.shape[-1] // self.zeros.shape[-1]
        return self.codes + (8 - self.zeros).repeat_interleave(group, -1)

    def dequantise(self) -> Tensor:
        """Value of each row in rotated LSBs, float64 [..., n, d]; the two planes of a row add up to its value."""
        group = self.codes.shape[-1] // self.zeros.shape[-1]
        scale = self.signed_mantissa.double() * 2.0 ** (self.exponent - formats.SCALE_BIAS).double()
        return self.effective.double() * scale.repeat_interleave(group, -1)

    def _scale_in_force(self) -> Tensor:
        following = torch.cat([self.scales[..., 1:, :], self.scales[..., -1:, :]], -2)
        return torch.where(self.low[..., None], following, self.scales)


def pack(rows: Rows, geometry: Geometry) -> bytes:
    """Raw rows as READ_ROWS carries them: codes from lane 0 up, scale bytes, zero points; padded to row_bytes."""
    out = bytearray()
    for i in range(len(rows)):
        word = _join(rows.codes[i].tolist(), formats.CODE_BITS)
        position = geometry.head_dim * formats.CODE_BITS
        word |= _join(rows.scales[i].tolist(), formats.SCALE_BITS) << position
        if geometry.zero_point:
            position += geometry.groups * formats.SCALE_BITS
            word |= _join(rows.zeros[i].tolist(), formats.ZERO_BITS) << position
        out += word.to_bytes(geometry.row_bytes, "little")
    return bytes(out)


def unpack(data: bytes, geometry: Geometry) -> Rows:
    """The rows in ``data``, a whole number of raw rows: inverse of :func:`pack`."""
    codes, scales, zeros = [], [], []
    for offset in range(0, len(data), geometry.row_bytes):
        word = int.from_bytes(data[offset:offset + geometry.row_bytes], "little")
        raw = _split(word, formats.CODE_BITS, geometry.head_dim)
        codes.append([c - 16 if c > formats.CODE_MAX else c for c in raw])
        word >>= geometry.head_dim * formats.CODE_BITS
        scales.append(_split(word, formats.SCALE_BITS, geometry.groups))
        word >>= geometry.groups * formats.SCALE_BITS
        zeros.append(_split(word, formats.ZERO_BITS, geometry.groups) if geometry.zero_point else [8] * geometry.groups)
    return Rows(*(torch.tensor(x, dtype=torch.int64) for x in (codes, scales, zeros)))


def _join(values: list[int], bits: int) -> int:
    return sum((v & ((1 << bits) - 1)) << (i * bits) for i, v in enumerate(values))


def _split(word: int, bits: int, count: int) -> list[int]:
    return [word >> (i * bits) & ((1 << bits) - 1) for i in range(count)]
