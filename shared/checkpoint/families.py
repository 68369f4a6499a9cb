"""One entry per architecture: what it adds to the plain decoder, and how files spell it.

The plain decoder is Llama (Touvron et al., 2023). An architecture that is not listed is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shared.checkpoint.spec import ModelSpec
from shared.checkpoint.tensors import layer_shapes
from shared.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An architecture. Numbers that vary between its models come from the file."""

    name: str
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    activation: str = "silu"
    scaled_embeddings: bool = False
    """Embeddings enter multiplied by sqrt(hidden)."""
    tied: bool = False
    """Where a folder's configuration does not say."""
    norms_minus_one: bool = False
    """Folders store norm weights minus one (GGUF files store them as they multiply)."""
    paired_rows: bool = False
    """GGUF files store q and k rows in neighbouring-pairs rotary order."""
    window_period: int = 0
    """Of a model with a sliding window, each n-th layer sees all positions; 0: none does."""
    local_rope_base: float = 0.0
    """Rotary base of the layers that have a window; 0: as the other layers."""
    wide_layers: int = 0
    """GGUF does not say the attention scale: with so many layers it is that of hidden / heads."""


_LLAMA: Final = Family(name="llama", paired_rows=True)
_MISTRAL: Final = Family(name="mistral")
_QWEN2: Final = Family(name="qwen2", qkv_bias=True)
_QWEN3: Final = Family(name="qwen3", qk_norm=True)
_GEMMA2: Final = Family(
    name="gemma2",
    post_norms=True,
    activation="gelu_tanh",
    scaled_embeddings=True,
    tied=True,
    norms_minus_one=True,
    window_period=2,
    wide_layers=46,
)
_GEMMA3: Final = Family(
    name="gemma3",
    qk_norm=True,
    post_norms=True,
    activation="gelu_tanh",
    scaled_embeddings=True,
    tied=True,
    norms_minus_one=True,
    window_period=6,
    local_rope_base=10_000.0,
    wide_layers=62,
)

BY_MODEL_TYPE: Final[Mapping[str, Family]] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
}
"""`model_type` of folders."""
BY_GGUF_NAME: Final[Mapping[str, Family]] = {
    "llama": _LLAMA,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
}
"""`general.architecture` of GGUF files; Mistral's say 'llama'."""

_GGUF_PARTS: Final = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "attn_post_norm": "post_attention_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "ffn_post_norm": "post_ffw_norm.weight",
}
_GGUF_OUTER: Final = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
}
_FOLDER_PARTS: Final = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
_FOLDER_POST_NORMS: Final = {
    "attn_post_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}
_FOLDER_OUTER: Final = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}


def family_of(architecture: str, known: Mapping[str, Family]) -> Family:
    """Raises CheckpointError naming what is supported."""
    family = known.get(architecture)
    if family is None:
        raise CheckpointError(
            f"architecture {architecture!r} is not supported ({', '.join(known)})"
        )
    return family


def gguf_names(spec: ModelSpec) -> dict[str, str]:
    """Where a GGUF file keeps each tensor, by internal name."""
    return _names(spec, _GGUF_OUTER, "blk", _GGUF_PARTS)


def folder_names(spec: ModelSpec) -> dict[str, str]:
    """Where a folder keeps each tensor, by internal name."""
    parts = _FOLDER_PARTS | (_FOLDER_POST_NORMS if spec.post_norms else {})
    return _names(spec, _FOLDER_OUTER, "model.layers", parts)


def _names(
    spec: ModelSpec, outer: Mapping[str, str], prefix: str, parts: Mapping[str, str]
) -> dict[str, str]:
    names = dict(outer)
    for layer in range(spec.layers):
        for part in layer_shapes(spec):
            names[f"layers.{layer}.{part}"] = f"{prefix}.{layer}.{parts[part]}"
    return names


def windows_of(
    family: Family, window: int, layers: int, context: int, local: Sequence[bool] | None = None
) -> tuple[int, ...]:
    """Per layer the window, 0 for all positions; empty where no layer has one that matters.
    `local`: which layers have it, where the file says so. Raises CheckpointError."""
    if window < 0:
        raise CheckpointError(f"sliding window is {window}")
    if not 0 < window < context or layers < 1:
        return ()
    if local is None:
        period = family.window_period
        local = [period == 0 or (layer + 1) % period != 0 for layer in range(min(layers, 1 << 10))]
    if len(local) != layers:
        raise CheckpointError(f"{len(local)} layer types for {layers} layers")
    return tuple(window if own else 0 for own in local) if any(local) else ()
