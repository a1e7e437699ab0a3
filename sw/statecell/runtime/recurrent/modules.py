"""The trainable parts of guards: freeze gate, strength of the error feedback, predictor of scales."""

from __future__ import annotations

import torch
from torch import Tensor, nn

HIDDEN = 16
MULTIPLIERS = (0.1, 10.0)
"""Range of the predictor's scales, over those that `scales` works out from the rows' norms."""
ALPHA = 0.8
_LEAK = 0.1
"""Gradient of a gate where it is clamped, so that it can come back."""
_EPSILON = 1e-6


class FreezeGate(nn.Module):
    """A gate in [0, 1] per token, layer and head, from the token's embedding. Open (1) before any training, by a margin
    that keeps it so for tokens whose writing is of use.
    """

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(layers, heads, width))
        self.bias = nn.Parameter(torch.full((layers, heads), 2.0))

    def forward(self, embedding: Tensor) -> Tensor:
        """Gates [B, T, layers, H] of normalised embeddings [B, T, E]: linear, clamped, so that 0 and 1 are reached."""
        linear = self.linear(embedding)
        leaky = _LEAK * linear
        gates: Tensor = linear.clamp(0, 1) + (leaky - leaky.detach())
        return gates

    def linear(self, embedding: Tensor) -> Tensor:
        """What is clamped."""
        product: Tensor = torch.einsum("bte,lhe->btlh", embedding, self.weight) / embedding.shape[-1] ** 0.5
        return product + self.bias


class ErrorFeedback(nn.Module):
    """The strength alpha of the error feedback, per layer and head; 0.8 before any training."""

    def __init__(self, layers: int, heads: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((layers, heads), ALPHA))

    def forward(self) -> Tensor:
        """Alpha [layers, H] in [0, 1]."""
        return self.alpha.clamp(0, 1)


class ScalePredictor(nn.Module):
    """Scales of one layer's rows from the token's embedding and the previous states' norms: two layers, hidden 16."""

    def __init__(self, width: int, heads: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.inner = nn.Linear(width + heads, HIDDEN)
        self.outer = nn.Linear(HIDDEN, heads * channels)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, embedding: Tensor, octaves: Tensor) -> Tensor:
        """Multipliers [..., H, R] within MULTIPLIERS, 1 before any training.

        ``embedding`` [..., E] normalised; ``octaves`` [..., H]: log2 of the norm of each head's state.
        """
        hidden = nn.functional.silu(self.inner(torch.cat([embedding, octaves / 8], -1)))
        scales: Tensor = self.outer(hidden).exp().clamp(*MULTIPLIERS)
        return torch.unflatten(scales, -1, (-1, self.channels))


def normalised(embedding: Tensor) -> Tensor:
    """Embeddings brought to a mean square of 1, as the guards see them."""
    return embedding * torch.rsqrt(embedding.square().mean(-1, keepdim=True) + _EPSILON)
