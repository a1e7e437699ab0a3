"""Gradients beside the integer model: alpha's against autograd through a float recurrence, a scale's by definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statecell.model.recurrent import integer, reference
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, Rule, Scales, Storage
from statecell.model.recurrent.state import State, new_state
from statecell.spec import formats
from statecell.spec.geometry import config
from statecell.train.sensitivity import Sensitivity

GEOMETRY = config("bench64")
RULE = Rule(delta=True)
HEADS, ROWS, TOKENS = 2, 4, 12


def tokens(seed: int = 0) -> list[Token]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(TOKENS):
        q, k = (torch.randn(HEADS, GEOMETRY.head_dim, generator=generator) for _ in range(2))
        q, k = (torch.round(x / x.norm(dim=-1, keepdim=True) * 2**formats.KEY_FRACTION).long() for x in (q, k))
        v = (torch.randn(HEADS, ROWS, generator=generator) * 3000).long()
        decay = (1 << formats.DECAY_FRACTION) - torch.randint(1 << 18, 1 << 20, (HEADS, 1), generator=generator)
        beta = torch.randint(1 << 12, 1 << formats.BETA_FRACTION, (HEADS,), generator=generator)
        found.append(Token(q, k, k, v, decay, beta))
    return found


def one(token: Token) -> Token:
    return Token(**{name: value[None] for name, value in vars(token).items()})


def real(token: Token) -> reference.Sequence:
    key = 2.0**-formats.KEY_FRACTION
    return reference.Sequence(
        token.q * key, token.k * key, token.b * key, token.v.double(),
        token.decay * 2.0**-formats.DECAY_FRACTION, token.beta * 2.0**-formats.BETA_FRACTION)


def low(state: State) -> Tensor:
    """What the read-out does not see, on the axis before the rotation."""
    high = State(**{**vars(state), "codes": state.high << formats.CODE_BITS})
    return state.unrotated_values() - high.unrotated_values()


@pytest.mark.parametrize("rotate", [False, True])
def test_alpha_has_the_gradient_of_the_float_recurrence(rotate: bool) -> None:
    """Its own states may drift from the stored ones: what is added to them, low times alpha, is the stored one's."""
    state = new_state([Mode(storage=Storage.RESIDUAL, rotate=rotate)] * HEADS, RULE, GEOMETRY, channels=ROWS)
    answer = Sensitivity(state)
    alpha = torch.zeros(HEADS, dtype=torch.float64, requires_grad=True)
    exact = torch.zeros(HEADS, ROWS, GEOMETRY.head_dim, dtype=torch.float64)
    outputs = []
    for token in tokens():
        o, exact = reference.step(exact, real(token), RULE)
        exact = exact + alpha[:, None, None] * real(token).decay[:, None] * low(state)
        outputs.append(o)
        answer.before(state)
        integer.step(state, token)
        answer.after(state, one(token))
    assert not bool(answer.alpha[0].any()) and not bool(answer.alpha[1].any())  # nothing has been fed back yet
    for t in (2, 5, TOKENS - 1):
        for row in range(ROWS):
            (wanted,) = torch.autograd.grad(outputs[t][:, row].sum(), alpha, retain_graph=True)
            seen = answer.alpha[t][:, row] / (1 << formats.RECUR_FRACTION)
            assert torch.allclose(seen, wanted, rtol=2e-2, atol=2e-3 * float(wanted.abs().max())), (t, row)
    assert not any(bool(error.any()) for error in answer.error)


def errors(byte: int) -> list[Tensor]:
    """Gradients of the log scale where every row is always written with the same one."""
    state = new_state([Mode(scales=Scales.SUPPLIED)] * HEADS, RULE, GEOMETRY, channels=ROWS)
    answer = Sensitivity(state)
    for token in tokens():
        answer.before(state)
        integer.step(state, token, scales=torch.full_like(state.scales, byte))
        answer.after(state, one(token))
    assert not any(bool(alpha.any()) for alpha in answer.alpha)
    return answer.error


def test_a_scale_that_clips_wants_to_grow_and_one_that_rounds_to_shrink() -> None:
    small, fitting, large = (torch.stack(errors(octave << formats.SCALE_MANTISSA)) for octave in (3, 9, 12))
    assert bool((small < 0).all()) and bool((large > 0).all())
    assert abs(float(fitting.mean())) < 0.2 * min(-float(small.mean()), float(large.mean()))


def test_the_gradient_of_a_scale_that_rounds_is_the_relative_error() -> None:
    state = new_state([Mode(scales=Scales.SUPPLIED, rotate=False)] * HEADS, RULE, GEOMETRY, channels=ROWS)
    answer, token = Sensitivity(state), tokens()[0]
    answer.before(state)
    integer.step(state, token, scales=torch.full_like(state.scales, 10 << formats.SCALE_MANTISSA))
    answer.after(state, one(token))
    _, exact = reference.step(torch.zeros_like(state.values()), real(token), RULE)
    expected = (state.values() - exact).square().sum(-1) / exact.square().sum(-1)
    assert torch.allclose(answer.error[0], expected, rtol=1e-2)
