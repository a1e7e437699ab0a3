"""Keys, values, queries, decays and betas that a model's Gated DeltaNet layers compute on a text."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from statecell.evaluate.drift import DriftError
from statecell.model.recurrent.families import GatedDeltaNet
from statecell.model.recurrent.reference import Sequence

_FUNCTIONS = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
"""Names under which transformers' modeling modules look up the recurrence."""


def captured(model: Any, ids: list[int], *, channels: int) -> Sequence:
    """Tokens of all Gated DeltaNet heads of a transformers model, layer after layer, from one forward pass over ids.

    The first ``channels`` value channels of each head. Queries and keys as the recurrence uses them: repeated for
    grouped heads, of unit norm (eps 1e-6) where the model asks for it, queries over sqrt(d). Other models raise
    DriftError.
    """
    module = sys.modules[type(model).__module__]
    originals = {name: getattr(module, name) for name in _FUNCTIONS if hasattr(module, name)}
    calls: list[Sequence] = []

    def recording(original: Any) -> Any:
        def call(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *rest: Any, **named: Any) -> Any:
            unit = bool(named.get("use_qk_l2norm_in_kernel", False))
            calls.append(_tokens(query[0], key[0], value[0, ..., :channels], g[0], beta[0], unit))
            return original(query, key, value, g, beta, *rest, **named)

        return call

    for name, original in originals.items():
        setattr(module, name, recording(original))
    try:
        with torch.inference_mode():
            model(torch.tensor([ids]), use_cache=False)
    finally:
        for name, original in originals.items():
            setattr(module, name, original)
    if not calls:
        raise DriftError(f"{type(model).__name__} has no Gated DeltaNet layers: give a Qwen3Next or Qwen3.5 model.")
    return Sequence(*(torch.cat([getattr(call, field) for call in calls], 1) for field in vars(calls[0])))


def _tokens(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, unit: bool) -> Sequence:
    q, k = (x.double().repeat_interleave(value.shape[1] // x.shape[1], 1) for x in (query, key))
    if unit:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    # exp of a decay that is far below anything the array resolves
    decay = g.double().exp().clamp(min=2.0**-24)
    return GatedDeltaNet.tokens(q / q.shape[-1] ** 0.5, k, value.double(), decay, beta.double())
