"""What `drift` predicts agrees with what it measures, and the storage modes fall in the known order."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from statecell.evaluate import drift as module
from statecell.evaluate.drift import NAIVE, DriftError, drift
from statecell.evaluate.driftrows import DriftRow, summary
from statecell.evaluate.sequences import synthetic
from statecell.evaluate.tracks import NaiveTrack
from statecell.model.recurrent.families import FAMILIES
from statecell.model.recurrent.named import DEFAULT, MODES

DECAYS = (0.9, 0.9998)


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, int], DriftRow]:
    return {(row.mode, row.head): row for row in drift(decays=DECAYS, tokens=768, channels=4, seed=3)}


def test_every_mode_has_a_row_for_each_head(rows: dict[tuple[str, int], DriftRow]) -> None:
    assert set(rows) == {(name, head) for name in (*NAIVE, *MODES, DEFAULT) for head in range(2)}
    assert all(list(row.read_error) == [96, 192, 384, 768] for row in rows.values())


def test_order_of_the_modes(rows: dict[tuple[str, int], DriftRow]) -> None:
    slow = {name: rows[name, 1].read_error[768] for name, head in rows if head == 1}
    assert slow["int4"] < 0.8 * slow["int4-fresh"], "held scales beat fresh ones on slow heads"
    assert slow["int4-fresh"] < slow["int4-fresh-stochastic"] and slow["int4"] < slow["int4-stochastic"]
    assert slow["int4-log32"] < slow["int4-log8"] < slow["int4"], "a longer log, a smaller error"
    assert slow["int8-log8"] < slow["int8"] < 0.2 * slow["int4"]
    assert slow["int8-log8"] < slow["naive-int8"] and slow["int4"] < slow["naive-int4"]
    assert rows["naive-int4", 1].inflation > 1.3 > 1.15 > rows["int4", 1].inflation, "fresh scales inflate slow heads"


def test_predictions_hold(rows: dict[tuple[str, int], DriftRow]) -> None:
    """Independent errors predict the state's error within a factor of two where rounding is not fed back (inflated)."""
    for (name, _), row in rows.items():
        assert row.expected < row.bound
        if name in ("int8", "int8-log8", "naive-int8", "int4-log32"):
            assert 0.5 < row.state_error / row.expected < 1.6, row
        assert row.state_error < row.bound, row


def test_the_default_takes_two_planes_for_slow_heads(rows: dict[tuple[str, int], DriftRow]) -> None:
    fast, slow = rows[DEFAULT, 0], rows[DEFAULT, 1]
    assert (fast.bits_per_element, slow.bits_per_element) == (4.25, 8.5)
    assert fast.read_error == rows["int4-log8", 0].read_error and slow.read_error == rows["int8-log8", 1].read_error
    line = next(line for line in summary(list(rows.values())) if line.mode == DEFAULT)
    assert line.bits_per_element == 6.375 and line.log_bits_per_element == 8 * 2 * 4.25 * 2 / 64
    assert line.read_error[768] == pytest.approx(math.hypot(fast.read_error[768], slow.read_error[768]) / 2**0.5)


def test_biased_rounding_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A naive store that truncates instead of rounding leaves the prediction for independent errors."""
    def measured() -> float:
        row = drift(decays=(0.9998,), modes=["naive-int8"], tokens=768, channels=4, seed=3)[0]
        return row.state_error / row.expected

    assert measured() < 1.6
    original = NaiveTrack.step

    def truncating(self: Any, token: Any) -> Any:
        original_round = torch.round
        with monkeypatch.context() as patch:
            patch.setattr(torch, "round", lambda x: torch.floor(x))
            assert torch.round is not original_round
            return original(self, token)

    monkeypatch.setattr(NaiveTrack, "step", truncating)
    assert measured() > 1.6


def test_spectral_radius() -> None:
    """A decay alone is its own radius; the delta rule forgets faster; no decay and no delta rule never."""
    radius = {}
    for family in ("retnet", "gdn", "linear"):
        tokens, rule = synthetic(family, (0.97,), 512, dim=64, channels=2, seed=1)
        decay = float(tokens.decay.log().mean().exp())
        radius[family] = float(module._reference(tokens, rule, lambda _: None)[2]) / decay
    assert radius["retnet"] == pytest.approx(1, abs=1e-9) and radius["linear"] == pytest.approx(1, abs=1e-12)
    assert 0.9 < radius["gdn"] < 0.9999


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs(family: str) -> None:
    row = drift(family, (0.98,), ["int8", "naive-int8"], tokens=256, channels=3)[0]
    assert 0 < row.read_error[256] < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"modes": ["int5"]}, "no storage mode 'int5': use naive-int4"), ({"family": "lstm"}, "no family 'lstm': use"),
     ({"decays": (0.9, 1.1)}, "must be above 0"), ({"decays": (float("nan"),)}, "must be above 0"),
     ({"tokens": 100}, "100 tokens are too few")],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DriftError, match=message):
        drift(**arguments)
