"""One recurrent layer of a cache, and the handle that stands for its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from statecell.model.recurrent.host import Units
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, RecurrentError, Rule, Scales
from statecell.model.recurrent.reference import Sequence as Tokens
from statecell.runtime.errors import CacheStateError, UnsupportedError, other_batch
from statecell.runtime.handle import Handle
from statecell.runtime.recurrent import gating
from statecell.runtime.recurrent.engine import StateEngine, StateShape, halves_of
from statecell.runtime.recurrent.modules import ScalePredictor
from statecell.runtime.recurrent.scales import Predicted, ScaleSource
from statecell.runtime.recurrent.units import first_units, integers, repeated, tokens_of, widened


class StateHandle(Handle):
    """Stands for a layer's stored states on their way to the recurrence."""

    __slots__ = ()
    layer: StateLayer
    REFUSAL = (
        "the model computes on its recurrent state itself ({what}), but it is stored in the engine only; use a model "
        "with Gated DeltaNet or Mamba-2 layers, or detach the engine"
    )


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """How the heads of one layer, of this recurrence, are stored; units None takes them from the first tokens.

    ``modes``: of one sequence's heads, for all sequences, or of every sequence's, one after the other.
    """

    rule: Rule
    modes: Sequence[Mode]
    units: Units | None
    predictor: ScalePredictor | None = None
    """Gives the scales of heads whose mode has them supplied."""
    feedback: Sequence[int] | None = None
    """Strength of the error feedback of one sequence's heads, in sixteenths; None is the format's own."""
    recalibrate: int | None = None
    """Tokens from one recalibration of all heads to the next; None for no recalibration."""


@dataclass(eq=False, kw_only=True)
class StateStore:
    """What the recurrent layers of one cache share. ``fault`` says why the states can no longer be used."""

    engine: StateEngine
    groups: list[int] = field(default_factory=list)
    fault: str | None = None

    def step(self, group: int, tokens: Token, scales: ScaleSource | None = None) -> Tensor:
        """A step of the engine; any error but a refusal leaves a state that nobody knows."""
        with self._known("step"):
            return self.engine.step(group, tokens, scales)

    def recalibrate(self, group: int) -> None:
        """A recalibration by the engine; any error leaves a state that nobody knows."""
        with self._known("recalibration"):
            self.engine.recalibrate(group)

    @contextmanager
    def _known(self, what: str) -> Iterator[None]:
        if self.fault is not None:
            raise CacheStateError(f"this cache cannot be used: {self.fault}; start a new one")
        try:
            yield
        except RecurrentError:
            raise
        except BaseException as error:
            self.fault = f"a recurrent {what} ended early with {type(error).__name__}"
            raise


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """A layer as it was after so many ``tokens``: the engine's snapshot and the convolution's last inputs; None where
    there were none.
    """

    snapshot: Any
    group: int | None
    tokens: int
    convolution: Tensor | None


class StateLayer(LinearAttentionLayer):
    """One layer: a group of the engine with a state per sequence and value head, opened at the first tokens.

    The inputs of the short convolution stay on the host.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, store: StateStore, index: int, plan: LayerPlan) -> None:
        super().__init__()
        self.store, self.index, self.plan = store, index, plan
        self.group: int | None = None
        self.batch = self.tokens = 0
        self.units: Units | None = None

    @property
    def handle(self) -> StateHandle:
        """What the model gets for the state."""
        return StateHandle(self)

    def update_recurrent_state(self, recurrent_states: Any, state_idx: int = 0, **_: Any) -> Any:
        """Nothing to store: the engine has it already. Raises UnsupportedError for a tensor."""
        if not isinstance(recurrent_states, StateHandle) or recurrent_states.layer is not self:
            raise UnsupportedError(
                f"layer {self.index} computed its recurrent state on the host, but it belongs into the engine; detach "
                "the engine for this model"
            )
        return recurrent_states

    def rule(self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """The gated rule over new tokens (shapes as in `units.tokens_of`); returns [B, T, H, R].

        Raises NotFiniteError, CacheStateError for another batch, UnsupportedError for another width, before anything
        is stored.
        """
        batch, _, heads, channels = value.shape
        tokens, gain = tokens_of(self.plan.rule, query, key, value, g, beta, self.index)
        halves = halves_of(key.shape[-1], self.store.engine.geometry.head_dim)
        if self.group is None:
            self._open(batch, heads, channels, halves, tokens)
        if batch != self.batch:
            raise other_batch(batch, self.batch)
        assert self.group is not None and self.units is not None
        wide = widened(tokens, halves * self.store.engine.geometry.head_dim)
        o = self._step(integers(self.units, wide, batch))
        out: Tensor = (repeated(self.units, batch).output(o) * gain[..., None]).unflatten(1, (batch, heads))
        return out.transpose(0, 1).to(value.dtype).to(value.device)

    def _step(self, tokens: Token) -> Tensor:
        """The read-outs of tokens [T, H, ...] in integers, with the recalibrations that are due among them."""
        assert self.group is not None
        count, every, begin, read = len(tokens.k), self.plan.recalibrate, 0, []
        while begin < count:
            end = count if every is None else min(count, begin + every - self.tokens % every)
            part = Token(**{name: value[begin:end] for name, value in vars(tokens).items()})
            read.append(self.store.step(self.group, part, self._scales(part, begin)))
            self.tokens += end - begin
            if every is not None and self.tokens % every == 0:
                self.store.recalibrate(self.group)
            begin = end
        return torch.cat(read)

    def _scales(self, tokens: Token, begin: int = 0) -> Predicted | None:
        """Where the scales of a pass's tokens from number ``begin`` on come from; None where the array chooses all."""
        if not any(mode.scales == Scales.SUPPLIED for mode in self.plan.modes):
            return None
        known = gating.passing()
        assert known is not None and self.plan.predictor is not None, "`plans` refuses these modes without guards"
        return Predicted(self.plan.predictor, known.embedding[:, begin:], tokens)

    def _open(self, batch: int, heads: int, channels: int, halves: int, tokens: Tokens) -> None:
        plan = self.plan
        units = plan.units if plan.units is not None else \
            first_units(plan.rule, tokens, batch, tokens.k.shape[-1])
        shape = StateShape(rule=plan.rule, channels=channels, halves=halves)
        modes = list(plan.modes) * (batch * heads // len(plan.modes))
        feedback = None if plan.feedback is None else list(plan.feedback) * batch
        self.group = self.store.engine.open_states(modes, shape, units.shift.repeat(batch).tolist(), feedback)
        self.store.groups.append(self.group)
        self.batch, self.units = batch, units

    def remember(self) -> Remembered:
        """What `go_back` needs to take back whatever comes after this call."""
        convolution = self.conv_states[0] if self.has_previous_state[0] else None
        return Remembered(
            snapshot=None if self.group is None else self.store.engine.snapshot(self.group), group=self.group,
            tokens=self.tokens,
            convolution=None if convolution is None else convolution.clone())

    def go_back(self, before: Remembered) -> None:
        """The layer as it was when `before` was taken."""
        if before.group is None:
            self.forget()
        else:
            self.store.engine.restore(before.group, before.snapshot)
            self.tokens = before.tokens
        self._set_convolution(before.convolution)

    def forget(self) -> None:
        """Free the states."""
        if self.group is not None:
            self.store.groups.remove(self.group)
            self.store.engine.free_states([self.group])
        self.group, self.batch, self.tokens, self.units = None, 0, 0, None

    def reset(self) -> None:
        """The layer as it was before the first token."""
        self.forget()
        self._set_convolution(None)

    def _set_convolution(self, inputs: Tensor | None) -> None:
        """The convolution's last inputs; transformers' own reset would write into tensors of inference mode."""
        self.conv_states[0] = None if inputs is None else inputs.clone()
        self.is_conv_states_initialized[0] = self.has_previous_state[0] = inputs is not None

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to take tokens out of a state."""
        if tokens_to_remove:
            raise UnsupportedError(
                "tokens cannot be taken out of a recurrent state again, so this cache cannot be cropped; start a new "
                "one with the text up to there"
            )

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Refuse beam search."""
        raise UnsupportedError("beam search reorders the cache, which states do not allow; use num_beams=1")
