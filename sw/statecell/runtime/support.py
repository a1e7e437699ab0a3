"""What the glue refuses, by name and before anything is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from statecell.model.recurrent.families import GatedDeltaNet
from statecell.model.recurrent.mode import Rule
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.recurrent.dispatch import family_of
from statecell.spec.geometry import CONFIGS

_CALL_REFUSALS = {
    "softcap": "capped attention scores (softcap)",
    "s_aux": "attention sinks (s_aux)",
    "position_bias": "a position bias added to the scores",
    "head_mask": "a head mask",
}
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_RECURRENT = "linear_attention"
_ARRAYS = sorted({known.head_dim for known in CONFIGS.values() if known.states})
_UNLIMITED = 1 << 40
_MODES = {"greedy_search", "sample", "assisted_generation"}


@dataclass(frozen=True, kw_only=True)
class StateGeometry:
    """Shape of a model's recurrent states: their ``rule``, indices of the ``layers``, value ``heads`` of each, key
    lanes ``dim`` and value ``channels`` of a head.
    """

    rule: Rule
    layers: tuple[int, ...]
    heads: int
    dim: int
    channels: int

    def __str__(self) -> str:
        """Readable in a sentence."""
        return f"{len(self.layers)} layers of {self.heads} states of {self.dim} x {self.channels}"


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Shape of a model's cached state; ``layers`` counts those with a KV cache, ``states`` are its recurrent ones.

    Without a KV cache ``head_dim`` is that of the array which keeps the states, and there are no ``kv_heads``.
    """

    layers: int
    kv_heads: int
    head_dim: int
    states: StateGeometry | None = None

    def __str__(self) -> str:
        """Readable in a sentence."""
        if not self.layers and self.states is not None:
            return str(self.states)
        text = f"{self.layers} layers of {self.kv_heads} KV heads with head_dim {self.head_dim}"
        return text if self.states is None else f"{text} and {self.states}"

    @property
    def depth(self) -> int:
        """Layers in all."""
        return self.layers + (len(self.states.layers) if self.states is not None else 0)


def model_geometry(model: Any) -> Geometry:
    """Geometry of a model's text decoder. Raises UnsupportedError where its attention is not plain causal attention."""
    config = model.config.get_text_config(decoder=True)
    kind = model.config.model_type
    reasons = {
        "an encoder beside the decoder": model.config.is_encoder_decoder,
        "attention scores that are capped (attn_logit_softcapping)": getattr(config, "attn_logit_softcapping", None),
        "latent attention (MLA), which computes on compressed keys": getattr(config, "kv_lora_rank", None),
        "chunked attention": getattr(config, "attention_chunk_size", None) is not None,
        "an ALiBi position bias": getattr(config, "alibi", False),
        "attention that is not causal": not getattr(config, "is_causal", True),
        "attention sinks": any(name.endswith(".sinks") for name, _ in model.named_parameters()),
        "its own attention code, which computes on cached keys": kind == "falcon",
    }
    states = _state_geometry(model, config)
    others = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if states is not None:
        others.discard(_RECURRENT)
    reasons[f"layers of type {', '.join(sorted(others))}"] = bool(others)
    for reason, present in reasons.items():
        if present:
            raise UnsupportedError(
                f"a model of type {kind} has {reason}, which the engine does not compute; "
                "use a model with plain causal attention, such as Llama, Qwen or Mistral"
            )
    if states is not None and len(states.layers) == config.num_hidden_layers:
        return Geometry(layers=0, kv_heads=0, head_dim=array_of(states.dim), states=states)
    heads = config.num_attention_heads
    return Geometry(
        layers=config.num_hidden_layers - (len(states.layers) if states is not None else 0),
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        states=states,
    )


def array_of(dim: int) -> int:
    """The head_dim of the least array whose rows take keys of ``dim`` lanes whole, else the largest there is."""
    return next((lanes for lanes in _ARRAYS if dim <= lanes), _ARRAYS[-1])


def _state_geometry(model: Any, config: Any) -> StateGeometry | None:
    """Shape of the states of a model's Gated DeltaNet or Mamba-2 layers; None where it has none."""
    layers, family = recurrent_layers(config), family_of(model)
    if not layers or family is None:
        return None
    if family is GatedDeltaNet:
        return StateGeometry(rule=family.rule, layers=layers, heads=config.linear_num_value_heads,
                             dim=config.linear_key_head_dim, channels=config.linear_value_head_dim)
    mixer = recurrent_modules(model, layers)[0]
    return StateGeometry(rule=family.rule, layers=layers, heads=mixer.num_heads, dim=mixer.ssm_state_size,
                         channels=mixer.head_dim)


def recurrent_modules(model: Any, layers: Sequence[int]) -> list[Any]:
    """The modules of a model's decoder that are the recurrences of these layers: those with decays of their own."""
    decoder = model.get_decoder().layers
    return [next(module for module in decoder[index].children() if hasattr(module, "A_log")) for index in layers]


def recurrent_layers(config: Any) -> tuple[int, ...]:
    """Indices of the layers that a text configuration calls linear attention."""
    kinds = getattr(config, "layer_types", None) or ()
    return tuple(index for index, kind in enumerate(kinds) if kind == _RECURRENT)


def context_of(model: Any) -> int:
    """Most tokens that a model was made for; one without attention names no limit."""
    return int(getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", _UNLIMITED))


def check_head_dim(wanted: int, available: int) -> None:
    """Raise UnsupportedError where the engine's rows are of another width than the model's heads."""
    if wanted != available:
        raise UnsupportedError(
            f"the model has head_dim {wanted}, the engine has head_dim {available}; "
            f"open a device configuration with head_dim {wanted}"
        )


def check_call(module: Any, dropout: float, options: dict[str, Any]) -> None:
    """Raise UnsupportedError where an attention call asks for something other than softmax(q.k) v."""
    for name, what in _CALL_REFUSALS.items():
        if options.get(name) is not None:
            raise UnsupportedError(
                f"{type(module).__name__} asks for {what}, which the engine does not compute; detach the engine for "
                "this model"
            )
    if dropout > 0 or module.training:
        raise UnsupportedError(
            f"{type(module).__name__} is in training mode (dropout {dropout}), the engine serves inference only; "
            "call model.eval() first"
        )
    if options.get("output_attentions"):
        raise UnsupportedError(
            "attention weights were asked for (output_attentions=True), but the engine never forms them; leave that "
            "option out"
        )


def check_generation(mode: str, generation_config: Any) -> None:
    """Raise UnsupportedError where a `generate` call needs more of its cache than slots can do."""
    if (generation_config.num_beams or 1) > 1:
        raise UnsupportedError(
            f"beam search (num_beams={generation_config.num_beams}) reorders the cache, which slots do not allow; "
            "use num_beams=1, with sampling and num_return_sequences for several answers"
        )
    if mode not in _MODES:
        raise UnsupportedError(
            f"generation mode {mode} is not supported on an engine; use greedy search, sampling or prompt lookup"
        )
    if generation_config.use_cache is False:
        raise UnsupportedError(
            "use_cache=False was given, but the engine is the cache; leave that option out, or detach"
        )
    if generation_config.cache_implementation is not None:
        raise UnsupportedError(
            f"cache_implementation={generation_config.cache_implementation!r} was given, but the engine is the cache; "
            "leave that option out, or detach"
        )
    if generation_config.output_attentions:
        raise UnsupportedError(
            "attention weights were asked for (output_attentions=True), but the engine never forms them; leave that "
            "option out"
        )
