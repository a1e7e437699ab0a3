"""The attention function: one engine call per layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from statecell.runtime.engine import Append, Attend, Attended
from statecell.runtime.errors import CacheStateError, UnsupportedError
from statecell.runtime.layer import SlotHandle, SlotLayer
from statecell.runtime.masking import Plan, window_of
from statecell.runtime.quantise import Floats, LayerScales, attended_to_float, queries_to_int16, rows_to_int16
from statecell.runtime.support import check_call


def slot_attention(
    module: Any,
    query: torch.Tensor,
    key: Any,
    value: Any,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of query [B, Hq, T, d] (position-encoded) over a layer's slots; returns [B, T, Hq, d] and None.

    `key` and `value` are the handle that `SlotLayer.update` returned. The rows it holds back are stored first, unless
    an earlier layer that shares them has done so. Raises UnsupportedError for what the engine does not compute,
    CacheStateError for a mask that does not fit and NotFiniteError for NaN or infinity, all before anything of this
    layer is stored; an engine's own error passes through. The cache takes back what earlier layers stored.
    """
    if not isinstance(key, SlotHandle) or key is not value:
        raise UnsupportedError(
            "the model was called without a slot cache, but its attention is attached to an engine; call the attached "
            "model or its generate(), or pass cache=attachment.new_cache()"
        )
    check_call(module, dropout, options)
    layer = key.layer
    state = layer.state
    state.check()
    batch, _, new, dim = query.shape
    fresh = layer.pending is not None
    past = layer.positions if fresh else layer.positions - new
    plan = state.plan_for(past, batch, new, attention_mask)
    result = _run(layer, query, plan, window_of(attention_mask, sliding_window), scaling or dim**-0.5)
    layer.positions = plan.past + plan.new
    return result, None


def _run(layer: SlotLayer, query: torch.Tensor, plan: Plan, window: int | None, scaling: float) -> torch.Tensor:
    state = layer.state
    batch, q_heads, new, dim = query.shape
    kv_heads = len(layer.slots[0])
    group = q_heads // kv_heads
    # [B, kv_heads, T, group, d]: the queries of one token that share a KV head become neighbours
    q = _floats(query).reshape(batch, kv_heads, group, new, dim).transpose(0, 1, 3, 2, 4)
    rows = None
    if layer.pending is not None:
        rows = (_floats(layer.pending[0]), _floats(layer.pending[1]))
    scales = layer.scales
    if scales is None:
        assert rows is not None, "a layer without scales has not stored any row"
        scales = layer.scales = _first_scales(rows, plan, layer.index)

    appends: list[Append] = []
    attends: list[Attend] = []
    for sequences, columns in plan.selections:
        if rows is not None:
            k = rows[0][sequences, :, columns]
            v = rows[1][sequences, :, columns]
            appends += _appends(layer, scales, k, v, plan, sequences)
        part = q[sequences, :, columns]
        part = part.reshape(part.shape[0], kv_heads, -1, dim)
        q_int, shifts = queries_to_int16(part, scaling, scales.k_lsb, layer.index)
        for i, b in enumerate(range(sequences.start, sequences.stop)):
            start, end = plan.ranges(b, group, window)
            for head, slot in enumerate(layer.slots[b]):
                shift = int(shifts[i, head])
                attends.append(Attend(slot=slot, q=q_int[i, head], start=start, end=end, shift=shift))

    state.commit(plan)
    if rows is not None:
        for b, keep in enumerate(plan.keep):
            if keep is not None:
                for slot in layer.slots[b]:
                    state.engine.truncate(slot, keep)
    results = state.run([*appends, *attends])[len(appends) :]
    layer.pending = None
    return _gather(results, plan, scales, (batch, kv_heads, new, group, dim), query)


def _first_scales(rows: tuple[Floats, Floats], plan: Plan, index: int) -> LayerScales:
    take = plan.take[:, None, :, None]
    k, v = (np.where(take, states, np.float32(0)) for states in rows)
    return LayerScales.from_first_rows(k, v, index)


def _appends(layer: SlotLayer, scales: LayerScales, k: Floats, v: Floats, plan: Plan, sequences: slice) -> list[Append]:
    counted = layer.state.counted
    k_int, k_saturated = rows_to_int16(k, scales.k_mean, scales.k_lsb, "key", layer.index)
    v_int, v_saturated = rows_to_int16(v, scales.v_mean, scales.v_lsb, "value", layer.index)
    counted.elements += k.size + v.size
    counted.saturated += k_saturated + v_saturated
    all_wide = layer.state.cache_format == "int8"
    items = []
    for i, b in enumerate(range(sequences.start, sequences.stop)):
        # The first token of a sequence draws attention from everywhere: in int4 it alone is stored in 8 bits.
        wide_first = not all_wide and plan.first_is_new(b)
        for head, slot in enumerate(layer.slots[b]):
            ks, vs = k_int[i, head], v_int[i, head]
            if wide_first:
                items.append(Append(slot=slot, k=ks[:1], v=vs[:1], wide=True))
                ks, vs = ks[1:], vs[1:]
            if len(ks):
                items.append(Append(slot=slot, k=ks, v=vs, wide=all_wide))
    return items


def _gather(
    results: list[Attended | None], plan: Plan, scales: LayerScales, shape: tuple[int, ...], query: torch.Tensor
) -> torch.Tensor:
    """Outputs of the items as [B, T, Hq, d] in the query's type; zero at padded positions, which nothing reads."""
    batch, kv_heads, new, group, dim = shape
    done = [result for result in results if result is not None]
    if len(done) != len(results):
        raise CacheStateError("the engine returned no result for an attention item; this is a fault of the engine")
    whole = np.zeros((batch, new, kv_heads, group, dim), np.float32)
    position = 0
    for sequences, columns in plan.selections:
        count = sequences.stop - sequences.start
        items = done[position : position + count * kv_heads]
        position += len(items)
        out = np.stack([item.out for item in items]).reshape(count, kv_heads, -1, dim)
        exponent = np.stack([item.exponent for item in items]).reshape(count, kv_heads, -1)
        value = attended_to_float(out, exponent, scales).reshape(count, kv_heads, -1, group, dim)
        whole[sequences, columns] = value.transpose(0, 2, 1, 3, 4)
    return torch.from_numpy(whole.reshape(batch, new, kv_heads * group, dim)).to(query.device, query.dtype)


def _floats(tensor: torch.Tensor) -> Floats:
    array: Floats = tensor.detach().to("cpu", torch.float32).numpy()
    return array
