"""The vectorised model against the plain-Python oracle, bit for bit, and against float attention, within a bound."""

from __future__ import annotations

import math

import pytest
import torch

from statecell.model import integer, quantise, reference, rotate, softmax
from statecell.model.rows import Rows, pack, unpack
from statecell.spec import formats
from statecell.spec.geometry import CONFIGS, Geometry, config
from tests.model import oracle

GEOMETRIES = [config("tiny"), config("tiny2"), config("wide128"), config("bench64")]


def vectors(generator: torch.Generator, count: int, dim: int, spread: float) -> torch.Tensor:
    x = torch.randn(count, dim, generator=generator) * spread
    x[:, int(torch.randint(dim, (1,), generator=generator))] *= 6  # an outlier channel, as keys have
    return x.round().clamp(-32767, 32767).long()


def stored(x: torch.Tensor, kinds: list[str], geometry: Geometry) -> Rows:
    return Rows.concatenate([
        integer.store(v[None], geometry, wide=kind == "wide", zero_point=kind == "zero_point")
        for v, kind in zip(x, kinds, strict=True)
    ])


@pytest.mark.parametrize(
    ("geometry", "kind"),
    [(g, k) for g in GEOMETRIES for k in ("narrow", "wide", "zero_point") if k != "zero_point" or g.zero_point],
)
def test_rows_equal_the_oracle(geometry: Geometry, kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    d = geometry.head_dim
    cases = [vectors(generator, 1, d, spread)[0] for spread in (0.3, 3, 40, 900, 9000, 60000)]
    cases += [torch.zeros(d).long(), torch.full((d,), 32767), torch.full((d,), -32767), torch.eye(d)[3].long() * -9]
    for x in cases:
        rows = integer.store(x[None], geometry, wide=kind == "wide", zero_point=kind == "zero_point")
        for i, expected in enumerate(oracle.store(x.tolist(), geometry.group, kind)):
            assert rows.codes[i].tolist() == [c for g in expected for c in g.codes]
            assert rows.scales[i].tolist() == [g.scale for g in expected]
            assert rows.zeros[i].tolist() == [g.zero for g in expected]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
def test_passes_equal_the_oracle(geometry: Geometry) -> None:
    generator = torch.Generator().manual_seed(2)
    kinds = ["narrow", "wide"] + (["zero_point"] if geometry.zero_point else [])
    happened = {"climb": 0, "drop": 0}
    for case in range(12):
        tokens = int(torch.randint(1, 20, (1,), generator=generator))
        chosen = [kinds[int(torch.randint(len(kinds), (1,), generator=generator))] for _ in range(tokens)]
        k = vectors(generator, tokens, geometry.head_dim, 2000)
        if case % 3 == 0:  # the last key is by far the best: the running maximum must jump
            k[:-1] //= 1000
        v = vectors(generator, tokens, geometry.head_dim, 10.0 ** (case % 4))
        q = vectors(generator, 3, geometry.head_dim, 3000)
        q[0] = k[-1]
        keys, values = stored(k, chosen, geometry), stored(v, chosen, geometry)
        bounds = [0]
        for kind in chosen:
            bounds.append(bounds[-1] + (2 if kind == "wide" else 1))
        ends = torch.randint(1, tokens + 1, (3,), generator=generator)
        starts = torch.tensor([int(torch.randint(int(e), (1,), generator=generator)) for e in ends])
        ends[0], starts[0] = tokens, 0
        shift = 20 + case % 5
        start, end = torch.tensor(bounds)[starts], torch.tensor(bounds)[ends]
        answer = integer.attend(q, keys, values, start, end, shift, geometry)
        plain_keys, plain_values = (
            [r for x, kind in zip(bank, chosen, strict=True) for r in oracle.store(x.tolist(), geometry.group, kind)]
            for bank in (k, v)
        )
        for lane in range(3):
            out, block, events = oracle.attend(q[lane].tolist(), plain_keys, plain_values, int(start[lane]),
                                               int(end[lane]), shift, geometry.query_bits)
            assert answer.vectors[lane].tolist() == out
            assert int(answer.block[lane]) == block
            happened = {name: happened[name] + events[name] for name in happened}
    assert happened["climb"] > 0 and happened["drop"] > 0, "the cases do not exercise the running maximum"


@pytest.mark.parametrize("geometry", [g for g in CONFIGS.values() if g.query_bits == 12], ids=lambda g: g.name)
def test_data_path_error_is_bounded(geometry: Geometry) -> None:
    """Cosine >= 0.9999 against exact attention over the de-quantised rows, for every query."""
    generator = torch.Generator().manual_seed(3)
    n, d = 200, geometry.head_dim
    k, v, q = (vectors(generator, n, d, s) for s in (1500, 1500, 4000))
    keys, values = integer.store(k, geometry), integer.store(v, geometry)
    start, end = torch.zeros(n).long(), torch.arange(1, n + 1)
    shift = 25
    answer = integer.attend(q, keys, values, start, end, formats.score_shift(shift, d), geometry)
    back = rotate.hadamard(d) * 2.0**geometry.rotate_shift / d
    exact = reference.attend(q, keys.dequantise() @ back, values.dequantise() @ back, start, end,
                             math.log(2) * 2.0**-shift)
    cosine = torch.nn.functional.cosine_similarity(answer.values(geometry), exact, dim=-1)
    assert float(cosine.min()) >= 0.9999
    assert float(((answer.values(geometry) - exact).norm(dim=-1) / exact.norm(dim=-1)).max()) < 0.015


def test_reference_is_torch_attention() -> None:
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(2, 7, 16, generator=generator, dtype=torch.float64) for _ in range(3))
    ours = reference.attend(q, k, v, torch.zeros(7).long(), torch.arange(1, 8), 0.25)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)
    assert torch.allclose(ours, theirs, atol=1e-12)


def test_batched_heads_equal_single_heads() -> None:
    geometry = config("bench64")
    generator = torch.Generator().manual_seed(5)
    k, v, q = (torch.stack([vectors(generator, 9, 64, 900) for _ in range(2)]) for _ in range(3))
    end = torch.arange(1, 10)
    keys, values = integer.store(k, geometry), integer.store(v, geometry)
    both = integer.attend(q, keys, values, torch.zeros(9).long(), end, 22, geometry)
    for h in range(2):
        one = integer.attend(q[h], integer.store(k[h], geometry), integer.store(v[h], geometry),
                             torch.zeros(9).long(), end, 22, geometry)
        assert torch.equal(one.vectors, both.vectors[h]) and torch.equal(one.block, both.block[h])


def test_raw_rows_round_trip() -> None:
    for geometry in (config("tiny"), config("tiny2")):
        x = vectors(torch.Generator().manual_seed(6), 5, geometry.head_dim, 500)
        rows = integer.store(x, geometry, zero_point=geometry.zero_point)
        data = pack(rows, geometry)
        assert len(data) == 5 * geometry.row_bytes
        again = unpack(data, geometry)
        assert all(torch.equal(getattr(rows, f), getattr(again, f)) for f in ("codes", "scales", "zeros"))


def test_two_planes_hold_eight_bits() -> None:
    geometry = config("bench64")
    x = vectors(torch.Generator().manual_seed(7), 50, 64, 2000)
    y = rotate.forward(x, geometry).double()
    narrow = (integer.store(x, geometry).dequantise() - y).norm() / y.norm()
    planes = integer.store(x, geometry, wide=True).dequantise()
    wide = (planes[0::2] + planes[1::2] - y).norm() / y.norm()
    assert float(narrow) < 0.11 and float(wide) < float(narrow) / 12


def test_scale_search_beats_the_first_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = config("bench64")
    y = rotate.forward(vectors(torch.Generator().manual_seed(8), 200, 64, 2000), geometry)
    best = (quantise.narrow_rows(y, geometry).dequantise() - y).square().sum()
    monkeypatch.setattr(formats, "CANDIDATES", 1)
    assert float(best) < 0.97 * float((quantise.narrow_rows(y, geometry).dequantise() - y).square().sum())


MUTANTS = {"LOOKAHEAD": 2, "SHIFT_MAX": 26, "VALUE_EXPONENT": 1}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_oracle_catches_a_mutant(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, mutant, getattr(formats, mutant) - MUTANTS[mutant])
    with pytest.raises(AssertionError):
        test_passes_equal_the_oracle(config("tiny"))


def test_running_maximum_never_lies_below_a_kept_row() -> None:
    generator = torch.Generator().manual_seed(9)
    need = torch.randint(-9, 9, (400, 30), generator=generator, dtype=torch.int32)
    visible = torch.ones(400, 30, dtype=torch.bool)
    maximum, kept = softmax.running_maximum(need, visible)
    assert bool((maximum >= need)[kept].all())
    assert bool((~kept).any()), "no row was dropped"
    assert bool((maximum.diff(dim=-1) <= 1)[kept[:, :-1] & kept[:, 1:]].all())
