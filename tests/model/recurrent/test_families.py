"""Every family against an implementation that is not ours: transformers' own functions, or the closed formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan, mamba2_selective_state_update
from transformers.models.minimax.configuration_minimax import MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)
from transformers.models.rwkv.modeling_rwkv import rwkv_linear_attention_cpu

from statecell.model.recurrent import families, reference
from statecell.model.recurrent.mode import RecurrentError, Rule
from statecell.model.recurrent.reference import Sequence

T, H, D, R = 37, 3, 8, 5
TOLERANCE = 2e-5
"""transformers' functions compute in float32."""


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


Q, K, V = random(T, H, D, seed=1), random(T, H, D, seed=2), random(T, H, R, seed=3)
GATE = torch.sigmoid(2 + random(T, H, seed=4))
LANES = torch.sigmoid(2 + random(T, H, D, seed=5))
BETA = torch.sigmoid(random(T, H, seed=6))


def close(ours: Tensor, theirs: Tensor, tolerance: float = TOLERANCE) -> bool:
    return float((ours - theirs.double()).abs().max()) < tolerance * float(theirs.abs().max())


def run(family: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    return reference.run(family.tokens(*inputs), family.rule)


def causal(scores: Tensor) -> Tensor:
    """[H, T, T] with the future removed."""
    return scores * torch.tril(torch.ones(T, T, dtype=torch.float64))


@pytest.mark.parametrize("theirs", [torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule])
def test_gated_deltanet(theirs: Any) -> None:
    o, state = run(families.GatedDeltaNet, unit(Q) / D**0.5, unit(K), V, GATE, BETA)
    expected, final = theirs(unit(Q)[None], unit(K)[None], V[None], GATE.log()[None], BETA[None],
                             initial_state=None, output_final_state=True, use_qk_l2norm_in_kernel=False)
    assert close(o, expected[0]) and close(state.transpose(-1, -2), final[0])


def test_deltanet_is_the_ungated_rule() -> None:
    o, _ = run(families.DeltaNet, unit(Q) / D**0.5, unit(K), V, BETA)
    expected, _ = torch_recurrent_gated_delta_rule(unit(Q)[None], unit(K)[None], V[None], torch.zeros(1, T, H),
                                                   BETA[None])
    assert close(o, expected[0])


def test_deltanet_is_the_product_of_its_transitions() -> None:
    """S_T = sum_t (product over s > t of (I - beta_s k_s k_s^T)) beta_t k_t v_t^T, for one head."""
    k, v, beta = unit(K)[:, 0], V[:, 0], BETA[:, 0]
    total, product = torch.zeros(D, R, dtype=torch.float64), torch.eye(D, dtype=torch.float64)
    for t in reversed(range(T)):
        total += product @ (beta[t] * torch.outer(k[t], v[t]))
        product = product @ (torch.eye(D, dtype=torch.float64) - beta[t] * torch.outer(k[t], k[t]))
    _, state = run(families.DeltaNet, Q, unit(K), V, BETA)
    assert close(state[0].T, total, 1e-12)


def test_gated_deltanet_with_a_decay_per_lane_is_kimi_delta_attention() -> None:
    o, state = run(families.GatedDeltaNet, unit(Q) / D**0.5, unit(K), V, LANES, BETA)
    expected, final = recurrent_kimi_delta_attention(unit(Q)[None], unit(K)[None], V[None], LANES.log()[None],
                                                     BETA[None], None, True)
    assert close(o, expected[0]) and close(state.transpose(-1, -2), final[0])


def test_mamba2_step_and_chunked() -> None:
    dt, a = torch.nn.functional.softplus(random(T, H, seed=7)), -torch.exp(random(H, seed=8))
    o, state = run(families.Mamba2, Q, K, V, dt, a)
    theirs = torch.zeros(1, H, R, D, dtype=torch.float64)
    for t in range(T):
        y = mamba2_selective_state_update(theirs, V[t][None], dt[t][None, :, None].expand(1, H, R),
                                          a[:, None, None].expand(H, R, D), K[t][None], Q[t][None])
        assert close(o[t], y[0])
    assert close(state, theirs[0])
    chunked = mamba2_chunk_scan(V[None].float(), dt[None].float(), a.float(), K[None].float(), Q[None].float(), 8)
    assert close(o, (chunked[0] if isinstance(chunked, tuple) else chunked)[0])


def test_retnet_is_its_parallel_form() -> None:
    """(Q K^T * gamma^(n - m)) V."""
    gamma = torch.tensor([0.9, 0.97, 0.999], dtype=torch.float64)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    powers = gamma[:, None, None] ** distance.clamp(min=0)
    parallel = causal(torch.einsum("thd,shd->hts", Q, K) * powers) @ V.transpose(0, 1)
    assert close(run(families.RetNet, Q, K, V, gamma)[0], parallel.transpose(0, 1), 1e-12)


def test_retnet_is_lightning_attention() -> None:
    """MiniMax's block-wise form of a fixed decay, its projections replaced by identities."""
    config = MiniMaxConfig(hidden_size=H * D, num_attention_heads=H, head_dim=D, num_hidden_layers=2, block_size=8,
                           layer_types=["linear_attention"] * 2)
    layer = MiniMaxLightningAttention(config, 1).double()
    vectors = torch.cat([Q, K, K.flip(0)], -1)
    for name in ("qkv_proj", "act_fn", "norm", "out_proj"):
        setattr(layer, name, torch.nn.Identity())
    layer.output_gate = torch.nn.Linear(3 * H * D, H * D, dtype=torch.float64)
    torch.nn.init.zeros_(layer.output_gate.weight)
    torch.nn.init.constant_(layer.output_gate.bias, 40)  # sigmoid(40) is 1
    x = vectors.flatten(1)[None]
    with torch.no_grad():
        expected, _ = layer(x, (x, x), None)
    o, _ = run(families.RetNet, Q, K, K.flip(0), torch.exp(-layer.slope_rate.flatten().double()))
    assert close(o.flatten(1), expected[0])


def test_gla_is_its_parallel_form() -> None:
    """q_t . sum_s (B_t / B_s) k_s v_s, B the running product of the lanes' decays."""
    running = torch.cumprod(LANES, 0)
    parallel = causal(torch.einsum("thd,shd->hts", Q * running, K / running)) @ V.transpose(0, 1)
    assert close(run(families.GatedLinearAttention, Q, K, V, LANES)[0], parallel.transpose(0, 1), 1e-9)


def test_rwkv_is_its_sum() -> None:
    """r_t . (sum over s < t of (product of w between s and t) k_s v_s + diag(u) k_t v_t)."""
    u = random(H, D, seed=9)
    o, _ = run(families.Rwkv, Q, K, V, LANES, u)
    for t in (0, 1, 5, T - 1):
        expected = torch.einsum("hd,hd,hr->hr", Q[t], u * K[t], V[t])
        for s in range(t):
            between = LANES[s + 1:t].prod(0)
            expected += torch.einsum("hd,hd,hr->hr", Q[t], between * K[s], V[s])
        assert close(o[t], expected, 1e-12)


def test_rwkv4_is_a_head_per_channel_with_a_normaliser() -> None:
    key, value = random(1, T, H, seed=10), random(1, T, H, seed=11)
    decay, first = random(H, seed=12), random(H, seed=13)
    one = torch.ones(T, H, 1, dtype=torch.float64)
    w = torch.exp(-torch.exp(decay))[None, :, None].expand(T, H, 1)
    o, _ = run(families.Rwkv, one, key[0].exp()[..., None], torch.stack([value[0], one[..., 0]], -1), w,
               first.exp()[:, None])
    expected, _ = rwkv_linear_attention_cpu(decay, first, key, value)
    assert close(families.LinearAttention.output(o)[..., 0], expected[0])


def test_linear_attention_is_normalised_attention() -> None:
    q, k = Q.exp(), K.exp()
    o, _ = run(families.LinearAttention, q, k, V)
    weights = causal(torch.einsum("thd,shd->hts", q, k))
    expected = (weights / weights.sum(-1, keepdim=True)) @ V.transpose(0, 1)
    assert close(families.LinearAttention.output(o), expected.transpose(0, 1), 1e-12)


def test_a_freeze_gate_mixes_old_and_new_state() -> None:
    tokens = families.RetNet.tokens(Q, K, V, torch.tensor([0.9, 0.5, 0.99], dtype=torch.float64))
    gate = torch.rand(T, H, generator=torch.Generator().manual_seed(14), dtype=torch.float64).round(decimals=1)
    _, state = reference.run(tokens.frozen(gate), Rule())
    expected = torch.zeros(H, R, D, dtype=torch.float64)
    for t in range(T):
        _, new = reference.step(expected, tokens.token(t), Rule())
        expected = gate[t][:, None, None] * new + (1 - gate[t])[:, None, None] * expected
    assert close(state, expected, 1e-12)
    with pytest.raises(RecurrentError, match="gates"):
        tokens.frozen(gate + 1)


MUTANTS: dict[str, Any] = {
    "read before the decay": Rule(delta=True, decay_first=False),
    "no delta rule": Rule(),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families.GatedDeltaNet, "rule", MUTANTS[name])
    with pytest.raises(AssertionError):
        test_gated_deltanet(torch_recurrent_gated_delta_rule)


@pytest.mark.parametrize(("name", "value", "message"), [
    ("decay", 0.0, "decays must be in"), ("decay", 1.01, "decays must be in"), ("k", float("nan"), "k holds NaN"),
    ("v", float("inf"), "v holds NaN or infinite")])
def test_bad_tokens_are_refused_by_name(name: str, value: float, message: str) -> None:
    tokens = vars(families.GatedDeltaNet.tokens(Q, K, V, GATE, BETA)) | {}
    tokens[name] = tokens[name].clone()
    tokens[name][3] = value
    with pytest.raises(RecurrentError, match=message):
        Sequence(**tokens)
