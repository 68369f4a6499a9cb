"""Opens a Hugging Face model folder: config.json and safetensors, single or sharded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.fingerprint import digest_files
from shared.checkpoint.folder_text import text_side
from shared.checkpoint.json_file import Fields, field, nested, read_fields
from shared.checkpoint.safetensors_file import StoredTensor, read_table, read_tensor
from shared.checkpoint.spec import ModelSpec, RopeScaling
from shared.checkpoint.tensors import check_tensors, layer_shapes
from shared.errors import CheckpointError

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_MAX_SHARDS: Final = 1_024
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def open_folder(path: Path) -> Checkpoint:
    """Read configuration and tables of contents; check that the model is complete."""
    config = read_fields(path / "config.json")
    stored = _stored(path)
    try:
        spec = _spec(config)
    except CheckpointError as error:
        raise CheckpointError(f"{path / 'config.json'}: {error.message}") from error
    names = _names(spec)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    check_tensors(spec, shapes, names, str(path))
    files = {path / "config.json", *(tensor.path for tensor in stored.values())}
    return Checkpoint(
        name=path.resolve().name,
        backend="torch",
        spec=spec,
        text=text_side(path, config, spec.vocab),
        tensors=FolderTensors(stored, names),
        fingerprint=partial(digest_files, files),
    )


def _spec(config: Fields) -> ModelSpec:
    architecture = field(config, "model_type", str, None)
    if architecture != "llama":
        raise CheckpointError(f"model_type {architecture!r} is not supported (llama)")
    for key in ("attention_bias", "mlp_bias"):
        if field(config, key, bool, False):
            raise CheckpointError(f"{key} is not supported")
    activation = field(config, "hidden_act", str, "silu")
    if activation != "silu":
        raise CheckpointError(f"hidden_act {activation!r} is not supported (silu)")
    if nested(config, "quantization_config") is not None:
        raise CheckpointError("quantised safetensors are not supported")
    heads = field(config, "num_attention_heads", int, None)
    hidden = field(config, "hidden_size", int, None)
    rope = nested(config, "rope_parameters") or {}
    return ModelSpec(
        architecture=architecture,
        layers=field(config, "num_hidden_layers", int, None),
        hidden=hidden,
        heads=heads,
        kv_heads=field(config, "num_key_value_heads", int, heads),
        head_dim=field(config, "head_dim", int, hidden // max(1, heads)),
        ffn=field(config, "intermediate_size", int, None),
        vocab=field(config, "vocab_size", int, None),
        context=field(config, "max_position_embeddings", int, None),
        rope_base=field(config, "rope_theta", float, field(rope, "rope_theta", float, 10_000.0)),
        rms_eps=field(config, "rms_norm_eps", float, 1e-6),
        tied=field(config, "tie_word_embeddings", bool, False),
        rope_scaling=_scaling(nested(config, "rope_scaling") or rope),
    ).validated()


def _scaling(rope: Fields) -> RopeScaling | None:
    kind = field(rope, "rope_type", str, field(rope, "type", str, "default"))
    if kind == "default":
        return None
    return RopeScaling(
        kind,
        field(rope, "factor", float, 1.0),
        field(rope, "low_freq_factor", float, 1.0),
        field(rope, "high_freq_factor", float, 4.0),
        field(rope, "original_max_position_embeddings", int, 8_192),
    )


def _names(spec: ModelSpec) -> dict[str, str]:
    names = {
        "embed": "model.embed_tokens.weight",
        "norm": "model.norm.weight",
        "head": "lm_head.weight",
    }
    for layer in range(spec.layers):
        for part in layer_shapes(spec):
            names[f"layers.{layer}.{part}"] = f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"
    return names


def _stored(path: Path) -> dict[str, StoredTensor]:
    if (path / _INDEX).exists():
        return _sharded(path)
    if not (path / _SINGLE).exists():
        raise CheckpointError(f"{path}: neither {_SINGLE} nor {_INDEX} is there")
    return read_table(path / _SINGLE)


def _sharded(path: Path) -> dict[str, StoredTensor]:
    index = path / _INDEX
    places = nested(read_fields(index), "weight_map") or {}
    shards = sorted({str(shard) for shard in places.values()})
    if not 1 <= len(shards) <= _MAX_SHARDS:
        raise CheckpointError(f"{index}: names {len(shards)} shards")
    if any("/" in shard or "\\" in shard or shard.startswith(".") for shard in shards):
        raise CheckpointError(f"{index}: a shard is not a plain file name")
    tables = {shard: read_table(path / shard) for shard in shards}
    stored: dict[str, StoredTensor] = {}
    for name, shard in places.items():
        tensor = tables[str(shard)].get(name)
        if tensor is None:
            raise CheckpointError(f"{index}: {name} is not in {shard}")
        stored[name] = tensor
    return stored


class FolderTensors:
    """Reads tensors out of the folder's shards, one at a time."""

    def __init__(self, stored: dict[str, StoredTensor], names: dict[str, str]) -> None:
        self._stored = stored
        self._names = names

    def has(self, name: str) -> bool:
        return self._names.get(name) in self._stored

    def read(self, name: str) -> NDArray[np.float32]:
        stored = self._stored.get(self._names.get(name, ""))
        if stored is None:
            raise CheckpointError(f"no tensor {name!r}")
        return read_tensor(stored)
