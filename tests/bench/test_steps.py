from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from statecell import device
from statecell.bench import steps
from statecell.bench.attention import BenchError
from statecell.bench.random_states import every_mode
from statecell.bench.steps import KINDS, DifferenceError, bench_steps
from statecell.model import rows
from statecell.model.recurrent import integer
from statecell.model.recurrent.families import FAMILIES
from statecell.model.recurrent.state import State

DEVICE = "sim:recur32"


def test_every_family_in_every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_SEQUENCE", 6)
    done: list[tuple[int, int]] = []
    found = bench_steps(DEVICE, steps=15, progress=lambda now, total: done.append((now, total)))
    assert {row.family for row in found} == set(KINDS) == {*FAMILIES, "kda"}
    assert [row.write_back for row in found].count("log") == 5  # a decay per lane has none
    assert [row.halves for row in found].count(2) == 5
    assert done[-1] == (18 * 15, 18 * 15) and all(row.steps == 15 and row.different == 0 for row in found)
    assert found[0].modes == tuple(f"{m.storage} {m.scales} {m.rounding}" for m in every_mode(False))
    assert [(len(row.modes), row.outputs) for row in found[:3]] == [
        (18, 18 * 15 * 16), (12, 12 * 15 * 32), (12, 12 * 15 * 16)]
    assert 0 < max(row.at_limit for row in found) < 0.2  # at limits too, but not there alone


def noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose noise is another's after the first token."""
    right = integer.step

    def step(state: State, *args: Any, **kwargs: Any) -> Tensor:
        o = right(state, *args, **kwargs)
        state.noise = state.noise ^ 1
        return o

    monkeypatch.setattr(integer, "step", step)


def flipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with another last bit in its outputs."""
    right = device.outputs
    monkeypatch.setattr(steps, "outputs", lambda answer: right(answer) ^ 1)


def damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with another bit in its rows."""
    right = rows.pack
    monkeypatch.setattr(steps, "pack", lambda x, g: bytes([right(x, g)[0] ^ 1]) + right(x, g)[1:])


@pytest.mark.parametrize(("mutant", "words"), [(noisy, "differ"), (flipped, "The output differs"),
                                               (damaged, "Registers or rows differ")])
def test_a_difference_ends_it(monkeypatch: pytest.MonkeyPatch, mutant: Any, words: str) -> None:
    mutant(monkeypatch)
    with pytest.raises(DifferenceError, match=words):
        bench_steps(DEVICE, steps=3, families=["gdn"])


def test_what_it_cannot_do_is_refused() -> None:
    for url, arguments, words in ((DEVICE, {"families": ["lstm"]}, "no family 'lstm'"),
                                  (DEVICE, {"steps": 0}, "at least 1"), ("sim:tiny", {}, "has 0 states")):
        with pytest.raises(BenchError, match=words):
            bench_steps(url, **({"steps": 2} | arguments))
