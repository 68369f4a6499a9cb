"""From a folder's config.json to a model spec. Reads no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shared.checkpoint.families import BY_MODEL_TYPE, Family, family_of, windows_of
from shared.checkpoint.json_file import Fields, field, nested
from shared.checkpoint.rope_scaling import (
    RopeScaling,
    longrope_attention_factor,
    yarn_attention_factor,
)
from shared.checkpoint.spec import LIMITS, ModelSpec
from shared.errors import CheckpointError

_ACTIVATIONS: Final = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_LOCAL: Final = "sliding_attention"


def read_family(config: Fields) -> Family:
    """The architecture that the configuration claims. Raises CheckpointError."""
    return family_of(field(config, "model_type", str, None), BY_MODEL_TYPE)


def read_spec(config: Fields, family: Family) -> ModelSpec:
    """The validated spec. Raises CheckpointError naming the field."""
    _check_kind(config)
    heads = field(config, "num_attention_heads", int, None)
    hidden = field(config, "hidden_size", int, None)
    layers = field(config, "num_hidden_layers", int, None)
    context = field(config, "max_position_embeddings", int, None)
    rope, local_rope = _rope_parameters(config)
    scalar = field(config, "query_pre_attn_scalar", float, 0.0)
    local_base = field(local_rope, "rope_theta", float, family.local_rope_base)
    return ModelSpec(
        architecture=family.name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=field(config, "num_key_value_heads", int, heads),
        head_dim=field(config, "head_dim", int, hidden // max(1, heads)),
        ffn=field(config, "intermediate_size", int, None),
        vocab=field(config, "vocab_size", int, None),
        context=context,
        rope_base=field(config, "rope_theta", float, field(rope, "rope_theta", float, 10_000.0)),
        rms_eps=field(config, "rms_norm_eps", float, 1e-6),
        tied=field(config, "tie_word_embeddings", bool, family.tied),
        rope_scaling=_scaling(rope, config, context),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        post_norms=family.post_norms,
        activation=_activation(config, family),
        embed_scale=abs(hidden) ** 0.5 if family.scaled_embeddings else 1.0,
        attention_scale=scalar**-0.5 if scalar > 0 else None,
        attention_cap=field(config, "attn_logit_softcapping", float, 0.0),
        logit_cap=field(config, "final_logit_softcapping", float, 0.0),
        windows=_windows(config, family, layers, context),
        local_rope_base=field(config, "rope_local_base_freq", float, local_base),
    ).validated()


def _check_kind(config: Fields) -> None:
    for key in ("attention_bias", "mlp_bias"):
        if field(config, key, bool, False):
            raise CheckpointError(f"{key} is not supported")
    if nested(config, "quantization_config") is not None:
        raise CheckpointError("quantised safetensors are not supported")
    if field(config, "use_bidirectional_attention", bool, False):
        raise CheckpointError("use_bidirectional_attention is not supported")


def _activation(config: Fields, family: Family) -> str:
    stored = config.get("hidden_activation") or config.get("hidden_act")
    if stored is None:
        return family.activation
    if not isinstance(stored, str) or stored not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise CheckpointError(f"hidden_act {stored!r} is not supported ({known})")
    return _ACTIVATIONS[stored]


def _rope_parameters(config: Fields) -> tuple[Fields, Fields]:
    """Of the ordinary layers, and of those with a window, where they have their own."""
    rope = nested(config, "rope_parameters") or {}
    if nested(rope, "full_attention") is not None:
        return nested(rope, "full_attention") or {}, nested(rope, _LOCAL) or {}
    return nested(config, "rope_scaling") or rope, {}


def _windows(config: Fields, family: Family, layers: int, context: int) -> tuple[int, ...]:
    window = field(config, "sliding_window", int, 0)
    if not field(config, "use_sliding_window", bool, True):
        return ()
    kinds = config.get("layer_types")
    if kinds is not None:
        return windows_of(family, window, layers, context, _local_layers(kinds))
    first = field(config, "max_window_layers", int, 0)
    period = field(config, "sliding_window_pattern", int, family.window_period)
    if not 0 < layers <= LIMITS["layers"] or period < 0:
        return ()
    local = [
        layer >= first and (period == 0 or (layer + 1) % period != 0) for layer in range(layers)
    ]
    return windows_of(family, window, layers, context, local)


def _local_layers(kinds: object) -> list[bool]:
    if not isinstance(kinds, Sequence) or not all(
        kind in (_LOCAL, "full_attention") for kind in kinds
    ):
        raise CheckpointError("layer_types holds a kind of attention that is not supported")
    return [kind == _LOCAL for kind in kinds]


def _scaling(rope: Fields, config: Fields, context: int) -> RopeScaling | None:
    kind = field(rope, "rope_type", str, field(rope, "type", str, "default"))
    if kind == "default":
        return None
    factor = field(rope, "factor", float, 1.0)
    known = field(
        config, "original_max_position_embeddings", int, 8_192 if kind == "llama3" else context
    )
    original = field(rope, "original_max_position_embeddings", int, known)
    if kind == "longrope" and original > 0:
        factor = field(rope, "factor", float, context / original)
    return RopeScaling(
        kind,
        factor,
        field(rope, "low_freq_factor", float, 1.0),
        field(rope, "high_freq_factor", float, 4.0),
        original,
        field(rope, "beta_fast", float, 32.0),
        field(rope, "beta_slow", float, 1.0),
        _magnitude(rope, kind, factor, original),
        _factors(rope, kind, context > original),
    )


def _magnitude(rope: Fields, kind: str, factor: float, original: int) -> float:
    stored = field(rope, "attention_factor", float, 0.0)
    if stored:
        return stored
    if kind == "longrope":
        return longrope_attention_factor(factor, original)
    if kind != "yarn" or factor <= 0:
        return 1.0
    over, under = field(rope, "mscale", float, 0.0), field(rope, "mscale_all_dim", float, 0.0)
    if over > 0 and under > 0:
        plain = yarn_attention_factor(factor) - 1.0
        return (1.0 + over * plain) / (1.0 + under * plain)
    return yarn_attention_factor(factor)


def _factors(rope: Fields, kind: str, long: bool) -> tuple[float, ...]:
    if kind != "longrope":
        return ()
    key = "long_factor" if long else "short_factor"
    values = rope.get(key)
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise CheckpointError(f"rope {key} is not a list of numbers")
    return tuple(float(value) for value in values)
