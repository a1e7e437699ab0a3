"""Training over stored states: read-outs are the integer model's, their gradients the float recurrence's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from statecell.model.recurrent.integer import Token
from statecell.runtime.recurrent.cache import RecurrentCache
from statecell.runtime.recurrent.guards import Guards
from statecell.runtime.recurrent.layer import LayerPlan, StateLayer, StateStore
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.recurrent.modules import ErrorFeedback
from statecell.runtime.recurrent.scales import Predicted, ScaleSource
from statecell.runtime.recurrent.units import repeated
from statecell.train.carry import CarriedConvolution, CarriedRows
from statecell.train.sensitivity import Sensitivity


class StoredState(CarriedConvolution, StateLayer):
    """A recurrent layer whose states are in the integer model, with a straight-through estimator around it.

    Forward: the integer model's read-outs, bit for bit. Backward: the gradient of the float recurrence ``chunked`` over
    the same segment, begun at the stored states (Bengio, Leonard and Courville 2013: a rounding counts as identity).
    Where the plan has predicted scales or error feedback, the predictor and ``feedback``, of which the layer is number
    ``row``, get gradients too, by `Sensitivity`: the latter from the read-outs, the former from `cost`.
    """

    def __init__(self, states: ModelStates, store: StateStore, index: int, plan: LayerPlan, chunked: Callable,
                 row: int = 0, feedback: ErrorFeedback | None = None) -> None:
        super().__init__(store, index, plan)
        self._states, self._chunked, self._row, self._feedback = states, chunked, row, feedback
        self._carried: Callable[[], Tensor] | None = None
        """0 for each read-out, with alpha's gradient."""
        self.cost: Callable[[], Tensor] | None = None
        """0 for the segment, with the predictor's gradient."""

    def rule(self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """As `StateLayer.rule`, with gradients."""
        out: Tensor = self._chunked(query, key, value, g=g, beta=beta, initial_state=self.real_state(),
                                    use_qk_l2norm_in_kernel=True)[0]
        with torch.no_grad():
            stored = super().rule(query, key, value, g, beta)
        out = out + (stored - out).detach()
        return out if self._carried is None else out + self._carried().to(out.dtype)

    def _step(self, tokens: Token) -> Tensor:
        """As `StateLayer._step`; `_carried` and `cost` then know how the guards should have decided."""
        self._carried = self.cost = None
        if self.plan.predictor is None and self.plan.feedback is None:
            return super()._step(tokens)
        assert self.group is not None and self.units is not None
        predicted, read = self._scales(tokens), []
        answer = Sensitivity(self._states.state(self.group))
        for t in range(len(tokens.k)):
            one = Token(**{name: value[t:t + 1] for name, value in vars(tokens).items()})
            answer.before(self._states.state(self.group))
            read.append(self.store.step(self.group, one, None if predicted is None else _later(predicted, t)))
            answer.after(self._states.state(self.group), one)
        units = repeated(self.units, self.batch)
        of_alpha, of_scale = (x.unflatten(1, (self.batch, -1)).transpose(0, 1) for x in (
            units.output(torch.stack(answer.alpha)), torch.stack(answer.error)))  # [B, T, H, R]
        if self._feedback is not None:
            learner = self._feedback
            self._carried = lambda: of_alpha * _nothing(learner()[self._row])[:, None]
        if predicted is not None:
            self.cost = lambda: (of_scale * _nothing(predicted.multipliers().log())).sum(-1).mean()
        return torch.cat(read)

    def real_state(self) -> Tensor | None:
        """The states in real units, with the tokens in the log, as transformers keeps them: float32 [B, H, d, R].

        None before any token.
        """
        if self.group is None or self.units is None:
            return None
        real = repeated(self.units, self.batch).state(self._states.state(self.group).unrotated_values())
        shaped: Tensor = real.unflatten(0, (self.batch, -1)).transpose(-1, -2)
        return shaped.float()


def _later(source: Predicted, begin: int) -> ScaleSource:
    """A source whose tokens are counted from ``begin``."""
    return lambda t, stored: source(begin + t, stored)


def _nothing(value: Tensor) -> Tensor:
    """Zeros with the gradient of ``value``."""
    return value - value.detach()


class StoredCache(RecurrentCache):
    """Stored states of a batch of streams between two segments of training; ``recurrent`` plans them by layer.

    ``guards``: those that the plans were made with, where they are to learn.
    """

    def __init__(self, states: ModelStates, layers: int, recurrent: Mapping[int, LayerPlan], chunked: Callable,
                 guards: Guards | None = None) -> None:
        store, rows = StateStore(engine=states), {index: row for row, index in enumerate(recurrent)}
        feedback = None if guards is None else guards.feedback
        held: list[Any] = [StoredState(states, store, i, recurrent[i], chunked, rows[i], feedback) if i in recurrent
                           else CarriedRows() for i in range(layers)]
        super().__init__(layers=held)

    def cost(self) -> Tensor:
        """What the predictors' gradients of the last segment are taken of; 0."""
        costs = [layer.cost() for layer in self.layers if isinstance(layer, StoredState) and layer.cost is not None]
        return sum(costs, torch.zeros(()))
