"""Seeded synthetic token sequences for recurrent layers: recurring keys, as text has them, and a set of decays."""

from __future__ import annotations

from collections.abc import Sequence as Values

import torch
from torch import Tensor

from statecell.model.recurrent import families
from statecell.model.recurrent.mode import Rule
from statecell.model.recurrent.reference import Sequence

DESCRIPTION = ("seeded synthetic tokens: 256 words with Zipf frequencies, keys, queries and values fixed projections "
               "of the word plus noise, each decay an exponential around the head's")
_WORDS, _WIDTH, _NOISE = 256, 48, 0.5


def synthetic(family: str, decays: Values[float], tokens: int, *, dim: int, channels: int,
              seed: int) -> tuple[Sequence, Rule]:
    """One head per decay: (tokens [T, H, ...], rule) of a family of ``families.FAMILIES``.

    A query asks for a word drawn like the keys' words, so that a read-out retrieves what that word's key has stored. Of
    the decays, the families without one take the number only.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads = len(decays)
    words = normal(_WORDS, _WIDTH)
    to_key, to_value = normal(heads, _WIDTH, dim), normal(heads, _WIDTH, channels) / _WIDTH**0.5
    frequency = 1 / torch.arange(1, _WORDS + 1, dtype=torch.float64)

    def drawn() -> Tensor:
        return words[torch.multinomial(frequency, tokens, replacement=True, generator=generator)]

    def projected(word: Tensor, matrix: Tensor) -> Tensor:
        return torch.einsum("te,hed->thd", word + _NOISE * normal(tokens, _WIDTH), matrix)

    word = drawn()
    k, v, q = projected(word, to_key), projected(word, to_value), projected(drawn(), to_key)
    k, q = k / k.norm(dim=-1, keepdim=True), q / q.norm(dim=-1, keepdim=True)
    mean = torch.tensor(decays, dtype=torch.float64)
    jitter = -torch.log(torch.rand(tokens, heads, dim, generator=generator, dtype=torch.float64).clamp(min=1e-12))
    beta = torch.sigmoid(normal(tokens, heads))
    made = {
        "linear": lambda: families.LinearAttention.tokens((8 * q).exp(), (8 * k).exp(), v),
        "retnet": lambda: families.RetNet.tokens(q, k, v, mean),
        "gla": lambda: families.GatedLinearAttention.tokens(q, k, v, mean[:, None] ** jitter),
        "mamba2": lambda: families.Mamba2.tokens(q, k, v, jitter[..., 0].clamp(max=3), mean.log()),
        "rwkv": lambda: families.Rwkv.tokens(q, k, v, mean[:, None] ** jitter, to_key[:, 0]),
        "deltanet": lambda: families.DeltaNet.tokens(q, k, v, beta),
        "gdn": lambda: families.GatedDeltaNet.tokens(q, k, v, mean ** jitter[..., 0], beta),
    }
    return made[family](), families.FAMILIES[family].rule
