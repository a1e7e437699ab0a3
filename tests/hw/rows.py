"""Random rows and queries for the gateware tests, and the bits that the banks hold for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model.accumulate import accumulate
from statecell.model.normalise import normalise
from statecell.model.quantise import Queries
from statecell.model.rows import Rows, pack
from statecell.model.score import scores
from statecell.model.softmax import running_maximum, weights
from statecell.spec import formats
from statecell.spec.geometry import Geometry


def random_rows(g: Geometry, planes: list[int], rng: torch.Generator, exponents: tuple[int, int] = (4, 9)) -> Rows:
    """Rows of tokens with one or two planes each: random codes, scales with exponents in the range, zero points."""
    count = sum(planes)
    last = torch.zeros(count, dtype=torch.bool)
    last[torch.tensor(planes).cumsum(0) - 1] = True
    codes = torch.randint(formats.CODE_MIN, formats.CODE_MAX + 1, (count, g.head_dim), generator=rng)
    exponent = torch.randint(*exponents, (count, g.groups), generator=rng)
    exponent = torch.where(last[:, None], exponent, formats.LOW_PLANE)
    scales = torch.randint(0, 2, (count, g.groups), generator=rng) << 7
    scales = scales + (exponent << formats.SCALE_MANTISSA) + torch.randint(0, 8, (count, g.groups), generator=rng)
    zeros = torch.randint(0, 16, (count, g.groups), generator=rng) if g.zero_point else torch.full_like(scales, 8)
    return Rows(codes, scales, zeros)


def random_queries(g: Geometry, lanes: int, rng: torch.Generator) -> Queries:
    """Queries with full-range codes and any scale."""
    limit = 1 << (g.query_bits - 1)
    codes = torch.randint(-limit, limit, (lanes, g.head_dim), generator=rng)
    sign = 1 - 2 * torch.randint(0, 2, (lanes,), generator=rng)
    mantissa = torch.randint(8, 16, (lanes,), generator=rng)
    return Queries(codes, sign, mantissa, torch.randint(3, 8, (lanes,), generator=rng))


def row_words(rows: Rows, g: Geometry) -> list[int]:
    """Each row as the integer that a bank stores."""
    data = pack(rows, g)
    return [int.from_bytes(data[i:i + g.row_bytes], "little") for i in range(0, len(data), g.row_bytes)]


def visible_rows(first: int, end: int, start: Tensor, stop: Tensor) -> Tensor:
    """Which rows first..end-1 each lane sees, bool [L, end - first]."""
    position = torch.arange(first, end)
    return (position >= start[:, None]) & (position < stop[:, None])


@dataclass(frozen=True)
class Expected:
    """What the integer model answers to a pass: ``output`` [L, d]; ``steps``, the most of any lane; ``drops``, whether
    rows were dropped."""

    output: Tensor
    steps: int
    drops: bool


def expected_pass(g: Geometry, query: Queries, keys: Rows, values: Rows, visible: Tensor, shift: int) -> Expected:
    """The integer model's answer to a pass over these rows."""
    score = scores(query, keys, torch.tensor(shift), g)
    weight = weights(score, visible, values)
    step = formats.SCORE_FRACTION + formats.STEP
    _, kept = running_maximum((score + (1 << step) - 1) >> step, visible)
    output = normalise(*accumulate(weight, values, g))
    return Expected(output, int(weight.level.max()), bool((visible & ~kept).any()))
