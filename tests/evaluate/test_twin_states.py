"""Twin states find a difference, also after going back, and find none where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from statecell.evaluate.twin_states import TwinStates
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, Rule
from statecell.runtime.recurrent.engine import StateShape
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.recurrent.scales import ScaleSource
from statecell.spec import formats
from statecell.spec.geometry import config

G = config("recur32")


class Faulty(ModelStates):
    """Answers with one bit of one head wrong."""

    def step(self, group: int, tokens: Token, scales: ScaleSource | None = None) -> Tensor:
        o = super().step(group, tokens, scales)
        o[:, 1, 3] ^= 1
        return o


class Forgetful(ModelStates):
    """Does not go back."""

    def restore(self, group: int, snapshot: Any) -> None:
        pass


@pytest.mark.parametrize(("device", "different"), [(ModelStates, {0}), (Faulty, {8}), (Forgetful, range(1, 9))])
def test_differences_are_counted(device: type[ModelStates], different: Any) -> None:
    twins = TwinStates(device(G), ModelStates(G))
    group = twins.open_states([Mode()] * 2, StateShape(rule=Rule(delta=True), channels=16), [0, 0])
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randint(-9000, 9000, (4, 2, n), generator=generator) for n in (32, 32, 16))
    decay, beta = torch.full((4, 2, 1), (1 << 24) - 9999), torch.full((4, 2), 1 << formats.BETA_FRACTION)
    snapshot = twins.snapshot(group)
    for _ in range(2):
        twins.step(group, Token(q, k, k, v, decay, beta))
        twins.restore(group, snapshot)
    assert twins.readouts == 16 and twins.different in different
    assert twins.counters().tokens == 16
    twins.free_states([group])
