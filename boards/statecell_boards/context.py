"""How much context of the demo models a configuration holds."""

from __future__ import annotations

from dataclasses import dataclass

from statecell.spec.geometry import Geometry


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What of a model decides whether it fits: layers, KV heads of a layer, width of a head, longest context."""

    layers: int
    kv_heads: int
    head_dim: int
    context: int


MODELS = {
    "smollm2-135m": Shape(layers=30, kv_heads=3, head_dim=64, context=8192),
    "glassllm": Shape(layers=4, kv_heads=2, head_dim=32, context=128),
}
"""The demo models that `statecell models` fetches."""


def tokens(g: Geometry, shape: Shape) -> int:
    """Tokens of one sequence that fit with the first token in 8 bits (two rows); 0 if the model does not fit.

    Every layer and KV head has a slot, all grow alike, and a slot takes whole pages.
    """
    slots = shape.layers * shape.kv_heads
    if g.head_dim != shape.head_dim or g.slots < slots:
        return 0
    in_tile = -(-slots // g.tiles)
    pages = min(g.pages // in_tile, g.pages_per_slot)
    return max(0, min(pages * g.page_rows - 1, shape.context))
