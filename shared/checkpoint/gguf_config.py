"""From a GGUF header's metadata to a model spec. Reads no tensor bytes."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np

from shared.checkpoint.families import BY_GGUF_NAME, Family, family_of, windows_of
from shared.checkpoint.gguf_header import GgufHeader, Value
from shared.checkpoint.rope_scaling import RopeScaling, yarn_attention_factor
from shared.checkpoint.spec import ModelSpec
from shared.errors import CheckpointError

Kind = TypeVar("Kind", int, float, str, bool)
_DEFAULT_BETAS: Final = (32.0, 1.0)


def field(metadata: dict[str, Value], key: str, kind: type[Kind], default: Kind | None) -> Kind:
    """A metadata value of exactly this type; absent means `default`, or an error if None."""
    value = metadata.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(f"metadata {key} is missing")
        return default
    if type(value) is not kind:
        raise CheckpointError(f"metadata {key} is not of type {kind.__name__}")
    return value


def read_family(header: GgufHeader) -> Family:
    """The architecture that the file claims. Raises CheckpointError."""
    return family_of(field(header.metadata, "general.architecture", str, None), BY_GGUF_NAME)


def read_spec(header: GgufHeader, family: Family) -> ModelSpec:
    """The validated spec. Raises CheckpointError naming the metadata key."""
    metadata, own = header.metadata, f"{family.name}."
    _check_kind(metadata, own)
    layers = field(metadata, own + "block_count", int, None)
    hidden = field(metadata, own + "embedding_length", int, None)
    heads = field(metadata, own + "attention.head_count", int, None)
    context = field(metadata, own + "context_length", int, None)
    head_dim = field(metadata, own + "attention.key_length", int, hidden // max(1, heads))
    for key in ("rope.dimension_count", "attention.value_length"):
        size = field(metadata, own + key, int, head_dim)
        if size != head_dim:
            what = "partial rotary embedding" if key.startswith("rope") else "value length"
            raise CheckpointError(f"{what} ({size} of {head_dim}) is not supported")
    embedding = header.tensors.get("token_embd.weight")
    return ModelSpec(
        architecture=family.name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=field(metadata, own + "attention.head_count_kv", int, heads),
        head_dim=head_dim,
        ffn=field(metadata, own + "feed_forward_length", int, None),
        vocab=embedding.shape[0] if embedding else field(metadata, own + "vocab_size", int, None),
        context=context,
        rope_base=field(metadata, own + "rope.freq_base", float, 10_000.0),
        rms_eps=_decimal(field(metadata, own + "attention.layer_norm_rms_epsilon", float, None)),
        tied="output.weight" not in header.tensors,
        rope_scaling=_scaling(metadata, own, context),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        post_norms=family.post_norms,
        activation=family.activation,
        embed_scale=abs(hidden) ** 0.5 if family.scaled_embeddings else 1.0,
        attention_scale=_attention_scale(metadata, family, layers, hidden, heads),
        attention_cap=field(metadata, own + "attn_logit_softcapping", float, 0.0),
        logit_cap=field(metadata, own + "final_logit_softcapping", float, 0.0),
        windows=_windows(metadata, family, layers, context),
        local_rope_base=field(metadata, own + "rope.freq_base_swa", float, family.local_rope_base),
    ).validated()


def _check_kind(metadata: dict[str, Value], own: str) -> None:
    if field(metadata, "split.count", int, 1) > 1:
        raise CheckpointError("split GGUF files are not supported; merge the parts first")
    if field(metadata, own + "expert_count", int, 0) > 0:
        raise CheckpointError("mixture-of-experts models are not supported")


def _decimal(stored: float) -> float:
    """The decimal number behind its float32 image: 1e-5, not 9.999999747e-06."""
    return float(str(np.float32(stored)))


def _attention_scale(
    metadata: dict[str, Value], family: Family, layers: int, hidden: int, heads: int
) -> float | None:
    stored = field(metadata, f"{family.name}.attention.scale", float, 0.0)
    if stored:
        return stored
    wide = family.wide_layers and layers == family.wide_layers
    return (hidden / max(1, heads)) ** -0.5 if wide and hidden > 0 else None


def _windows(
    metadata: dict[str, Value], family: Family, layers: int, context: int
) -> tuple[int, ...]:
    own = f"{family.name}.attention.sliding_window"
    window = field(metadata, own, int, 0)
    pattern = metadata.get(own + "_pattern")
    if isinstance(pattern, list):
        local = [value is True for value in pattern]
        return windows_of(family, window, layers, context, local)
    return windows_of(family, window, layers, context)


def _scaling(metadata: dict[str, Value], own: str, context: int) -> RopeScaling | None:
    own += "rope.scaling."
    kind = field(metadata, own + "type", str, "none")
    if kind == "none":
        return None
    factor = field(metadata, own + "factor", float, 1.0)
    original = field(metadata, own + "original_context_length", int, context)
    magnitude = field(metadata, own + "yarn_attn_factor", float, 1.0)
    magnitude *= field(metadata, own + "attn_factor", float, 1.0)
    if kind == "yarn" and factor > 0:
        magnitude *= yarn_attention_factor(factor)
    if kind == "longrope":
        raise CheckpointError("rope scaling 'longrope' is supported in folders only")
    return RopeScaling(
        kind,
        factor,
        original_context=original,
        beta_fast=field(metadata, own + "yarn_beta_fast", float, _DEFAULT_BETAS[0]),
        beta_slow=field(metadata, own + "yarn_beta_slow", float, _DEFAULT_BETAS[1]),
        attention_factor=magnitude,
    )
