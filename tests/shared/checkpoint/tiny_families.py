"""Tiny random models of every architecture, as their publishers write them: a config.json with the
names of safetensors, and the same weights as llama.cpp's converters lay them out in GGUF.

Knows the file formats only; what the models compute is in `family_reference`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray
from safetensors.numpy import save_file

from shared.checkpoint.hashchain import open_hashchain

Weights = dict[str, NDArray[np.float32]]
Config = dict[str, Any]
VOCAB = 512
_GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, kw_only=True)
class TinyFamily:
    """`config` is what differs from a plain Llama; `gguf` the extra metadata below the
    architecture's own prefix. `gguf_name` None: the format cannot say this."""

    config: Config
    gguf_name: str | None
    gguf: dict[str, int | float | str | list[bool]] = field(default_factory=dict)
    rope_factors: tuple[float, ...] = ()

    @property
    def full_config(self) -> Config:
        plain: Config = {
            "model_type": "llama",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "vocab_size": VOCAB,
            "max_position_embeddings": 512,
            "rope_theta": 10_000.0,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        }
        return plain | self.config


def head_dim(config: Config) -> int:
    return int(config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]))


def weights_of(config: Config, seed: int = 0) -> Weights:
    """Random, by the names of safetensors."""
    chance = np.random.default_rng(seed)
    gemma = config["model_type"].startswith("gemma")
    weights: Weights = {}

    def draw(name: str, *shape: int) -> None:
        centre = 1.0 if name.endswith("norm.weight") and not gemma else 0.0
        values = centre + 0.2 * chance.standard_normal(shape)
        weights[name] = values.astype(np.float32)

    hidden, ffn, size = config["hidden_size"], config["intermediate_size"], head_dim(config)
    draw("model.embed_tokens.weight", config["vocab_size"], hidden)
    draw("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        draw("lm_head.weight", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        heads = {"q": config["num_attention_heads"]}
        heads |= dict.fromkeys("kv", config["num_key_value_heads"])
        for part, count in heads.items():
            draw(f"{at}self_attn.{part}_proj.weight", count * size, hidden)
            if config["model_type"] == "qwen2":
                draw(f"{at}self_attn.{part}_proj.bias", count * size)
        draw(f"{at}self_attn.o_proj.weight", hidden, heads["q"] * size)
        if config["model_type"] in ("qwen3", "gemma3_text"):
            draw(f"{at}self_attn.q_norm.weight", size)
            draw(f"{at}self_attn.k_norm.weight", size)
        draw(f"{at}input_layernorm.weight", hidden)
        draw(f"{at}post_attention_layernorm.weight", hidden)
        if gemma:
            draw(f"{at}pre_feedforward_layernorm.weight", hidden)
            draw(f"{at}post_feedforward_layernorm.weight", hidden)
        draw(f"{at}mlp.gate_proj.weight", ffn, hidden)
        draw(f"{at}mlp.up_proj.weight", ffn, hidden)
        draw(f"{at}mlp.down_proj.weight", hidden, ffn)
    return weights


def write_safetensors(path: Path, family: TinyFamily) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    config = family.full_config
    save_file(weights_of(config), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    open_hashchain().tokenizer().save(str(path / "tokenizer.json"))
    return path


def write_gguf(path: Path, family: TinyFamily) -> Path:
    assert family.gguf_name is not None
    config, own = family.full_config, family.gguf_name
    writer = GGUFWriter(str(path), own)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    for key, value in family.gguf.items():
        if isinstance(value, list):
            writer.add_array(f"{own}.{key}", value)
            continue
        adders: dict[type, Any] = {int: writer.add_uint32, float: writer.add_float32}
        adders.get(type(value), writer.add_string)(f"{own}.{key}", value)
    _vocabulary(writer)
    for name, values in weights_of(config).items():
        writer.add_tensor(*_laid_out(own, config, name, values))
    if family.rope_factors:
        writer.add_tensor("rope_freqs.weight", np.array(family.rope_factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary(writer: GGUFWriter) -> None:
    vocabulary = open_hashchain().tokenizer().get_vocab(with_added_tokens=True)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(
        [*sorted(vocabulary, key=lambda text: vocabulary[text])[:510], "ab", "cd"]
    )
    writer.add_token_merges(["a b", "c d"])


def _laid_out(
    own: str, config: Config, name: str, values: NDArray[np.float32]
) -> tuple[str, NDArray[np.float32]]:
    """What the converters do: rename, pair rotary rows for Llama, add one to Gemma's norms."""
    if own.startswith("gemma") and name.endswith("norm.weight"):
        values = values + 1
    if own == "llama" and ("q_proj" in name or "k_proj" in name):
        rows = values.reshape(-1, 2, head_dim(config) // 2, values.shape[1])
        values = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(values.shape)
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in outer:
        return outer[name], values
    _, _, layer, part = name.split(".", 3)
    part, kind = part.rsplit(".", 1)
    norms = {"post_attention_layernorm": "ffn_norm"}
    if own.startswith("gemma"):
        norms = {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    return f"blk.{layer}.{(_GGUF_PARTS | norms)[part]}.{kind}", values
