"""Small random models of Gated DeltaNet or Mamba-2 layers, most with a softmax layer, and exact states under them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BambaConfig, GraniteMoeHybridConfig, Mamba2Config, Qwen3_5TextConfig, Qwen3NextConfig

from statecell.model.recurrent import reference
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode
from statecell.runtime.attention import attach
from statecell.runtime.errors import NotFiniteError
from statecell.runtime.recurrent.engine import StateCounters, StateShape
from statecell.runtime.recurrent.scales import ScaleSource
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from tests.runtime.exact_engine import ExactEngine
from tests.runtime.small_models import PAD, prompt, small_model

HEAD_DIM = 32
GEOMETRY = config("glassllm")
_SHAPE: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": HEAD_DIM, "linear_key_head_dim": HEAD_DIM, "linear_value_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "max_position_embeddings": 256, "initializer_range": 0.3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2,
}
_MAMBA: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 32, "state_size": HEAD_DIM,
    "n_groups": 2, "chunk_size": 8, "initializer_range": 0.3, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2,
}
_MIXED: dict[str, Any] = {
    **{name: _SHAPE[name] for name in ("vocab_size", "intermediate_size", "num_hidden_layers",
                                       "max_position_embeddings", "initializer_range")},
    "hidden_size": 2 * HEAD_DIM, "num_attention_heads": 2, "num_key_value_heads": 1, "mamba_n_heads": 4,
    "mamba_d_head": 32, "mamba_d_state": HEAD_DIM, "mamba_n_groups": 2, "mamba_chunk_size": 8, "pad_token_id": PAD,
    "bos_token_id": 1, "eos_token_id": 2,
}
CONFIGS: dict[str, Any] = {
    "qwen3_5": lambda: Qwen3_5TextConfig(**_SHAPE),
    "qwen3_5-nope": lambda: Qwen3_5TextConfig(
        **_SHAPE, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.0}),
    "qwen3_5-wide": lambda: Qwen3_5TextConfig(**_SHAPE | {"linear_key_head_dim": 2 * HEAD_DIM}),
    "qwen3_next": lambda: Qwen3NextConfig(**_SHAPE, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32,
                                          shared_expert_intermediate_size=32),
    "qwen3_5-narrow": lambda: Qwen3_5TextConfig(**_SHAPE | {"linear_key_head_dim": HEAD_DIM // 2}),
    "mamba2": lambda: Mamba2Config(**_MAMBA),
    "mamba2-narrow": lambda: Mamba2Config(**_MAMBA | {"state_size": HEAD_DIM // 2}),
    "mamba2-wide": lambda: Mamba2Config(**_MAMBA | {"state_size": 2 * HEAD_DIM}),
    "bamba": lambda: BambaConfig(**_MIXED, attn_layer_indices=[1]),
    "granite": lambda: GraniteMoeHybridConfig(
        **_MIXED, layer_types=_SHAPE["layer_types"], num_local_experts=2, num_experts_per_tok=1,
        shared_intermediate_size=32),
}
LINEAR = (0, 2)


def hybrid(name: str = "qwen3_5") -> Any:
    return small_model(config=CONFIGS[name]())


class ExactStates:
    """States in float64 over the same integers that the device gets."""

    def __init__(self, geometry: Geometry = GEOMETRY) -> None:
        self.geometry = geometry
        self.groups: dict[int, tuple[StateShape, Tensor]] = {}
        self.modes: dict[int, list[Mode]] = {}
        self.steps = 0
        self.taken: Counter[int] = Counter()
        self.recalibrated: list[tuple[int, int]] = []
        self._next = 0

    def check_modes(self, modes: Sequence[Mode], shape: StateShape) -> None:
        pass

    def open_states(self, modes: Sequence[Mode], shape: StateShape, shift: Sequence[int],
                    feedback: Sequence[int] | None = None) -> int:
        assert len(modes) == len(shift)
        group, self._next = self._next, self._next + 1
        state = torch.zeros(len(modes), shape.channels, shape.halves * self.geometry.head_dim, dtype=torch.float64)
        self.groups[group], self.modes[group] = (shape, state), list(modes)
        return group

    def free_states(self, groups: Sequence[int]) -> None:
        for group in groups:
            del self.groups[group]

    def step(self, group: int, tokens: Token, scales: ScaleSource | None = None) -> Tensor:
        shape, state = self.groups[group]
        key, beta = 2.0**-formats.KEY_FRACTION, 2.0**-formats.BETA_FRACTION
        q, k, b = (x.double() * key for x in (tokens.q, tokens.k, tokens.b))
        decay = tokens.decay.double() * 2.0**-formats.DECAY_FRACTION
        run = reference.Sequence(q, k, b, tokens.v.double(), decay, tokens.beta.double() * beta)
        o, state = reference.run(run, shape.rule, state)
        self.groups[group] = (shape, state)
        self.steps += len(tokens.k)
        self.taken[group] += len(tokens.k)
        return torch.round(o * 2**formats.RECUR_FRACTION).long()

    def recalibrate(self, group: int) -> None:
        self.recalibrated.append((group, self.taken[group]))

    def snapshot(self, group: int) -> Any:
        return self.groups[group]

    def restore(self, group: int, snapshot: Any) -> None:
        self.groups[group] = snapshot

    def counters(self) -> StateCounters:
        return StateCounters(tokens=self.steps)


def exact_engine(**options: Any) -> ExactEngine:
    engine = ExactEngine(HEAD_DIM, **options)
    engine.states = ExactStates()
    return engine


def _nan(_: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (arguments[0] * float("nan"), *arguments[1:])


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def fail_everywhere(model: Any, cache: Any, ids: torch.Tensor) -> None:
    """A pass that fails in front of each layer, by NaN and by an interrupt, and one that fails after the last."""
    kinds: list[tuple[Any, Any, type[BaseException]]] = [(model.lm_head, _interrupt, KeyboardInterrupt)]
    for layer in model.get_decoder().layers:
        kinds += [(layer, _nan, NotFiniteError), (layer, _interrupt, KeyboardInterrupt)]
    for module, hook, error in kinds:
        handle = module.register_forward_pre_hook(hook)
        with pytest.raises(error):
            model(ids, cache=cache)
        handle.remove()


def conversation(engine: Any, failing: bool, state_format: str = "int4-log8",
                 name: str = "qwen3_5", recalibrate: int | None = None) -> tuple[list[torch.Tensor], Any]:
    """Logits of some passes of a model on an engine, if ``failing`` with some that fail before each; and its cache."""
    model = hybrid(name)
    attachment = attach(model, engine, state_format=state_format, recalibrate=recalibrate)
    cache = attachment.new_cache()
    logits = []
    for length, seed in ((6, 1), (1, 2), (4, 3), (1, 4)):
        if failing:
            fail_everywhere(model, cache, prompt(3, seed=9))
        logits.append(model(prompt(length, seed=seed), cache=cache).logits)
    return logits, cache
