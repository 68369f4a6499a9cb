"""Writes tiny models in both file formats for the tests: same weights, same vocabulary."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from shared.checkpoint.hashchain import open_hashchain
from shared.checkpoint.spec import ModelSpec
from shared.checkpoint.tensors import tensor_shapes

Weights = dict[str, NDArray[np.float32]]
END = "<|im_end|>"


def tiny_spec(**changes: object) -> ModelSpec:
    """Two layers, 4 heads on 2 KV heads, vocabulary of the hashchain tokenizer."""
    fields: dict[str, object] = {
        "architecture": "llama",
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "ffn": 96,
        "vocab": 512,
        "context": 512,
        "rope_base": 10_000.0,
        "rms_eps": 1e-5,
        "tied": True,
    }
    return ModelSpec(**(fields | changes))  # type: ignore[arg-type]


def random_weights(spec: ModelSpec, seed: int = 0) -> Weights:
    chance = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in tensor_shapes(spec).items():
        centre = 1.0 if name.endswith("norm") else 0.0
        weights[name] = (centre + 0.2 * chance.standard_normal(shape)).astype(np.float32)
    return weights


@dataclass(kw_only=True)
class TinyGguf:
    """What goes into a GGUF file; tests change one thing at a time."""

    spec: ModelSpec = field(default_factory=tiny_spec)
    architecture: str = "llama"
    storage: GGMLQuantizationType = GGMLQuantizationType.F32
    dropped: tuple[str, ...] = ()
    pre: str = "gpt-2"
    extra: dict[str, int | float | str] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        writer = GGUFWriter(str(path), self.architecture)
        self._metadata(writer)
        for name, values in random_weights(self.spec).items():
            if name not in self.dropped:
                self._tensor(writer, name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _metadata(self, writer: GGUFWriter) -> None:
        spec = self.spec
        writer.add_block_count(spec.layers)
        writer.add_context_length(spec.context)
        writer.add_embedding_length(spec.hidden)
        writer.add_feed_forward_length(spec.ffn)
        writer.add_head_count(spec.heads)
        writer.add_head_count_kv(spec.kv_heads)
        writer.add_rope_freq_base(spec.rope_base)
        writer.add_layer_norm_rms_eps(spec.rms_eps)
        vocabulary = open_hashchain().tokenizer().get_vocab(with_added_tokens=True)
        tokens = [*sorted(vocabulary, key=lambda text: vocabulary[text])[:510], "ab", "cd"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(tokens)
        writer.add_token_merges(["a b", "c d"])
        writer.add_token_types([3 if 256 <= id_ < 510 else 1 for id_ in range(len(tokens))])
        writer.add_eos_token_id(257)
        writer.add_chat_template("{{ messages[0]['content'] }}")
        for key, value in self.extra.items():
            adders: dict[type, Any] = {int: writer.add_uint32, float: writer.add_float32}
            adders.get(type(value), writer.add_string)(key, value)

    def _tensor(self, writer: GGUFWriter, name: str, values: NDArray[np.float32]) -> None:
        kind = name.rpartition(".")[2]
        if kind in ("q", "k"):
            heads = self.spec.heads if kind == "q" else self.spec.kv_heads
            halves = values.reshape(heads, 2, -1, values.shape[1])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        plain = self.storage is GGMLQuantizationType.F32 or values.ndim == 1
        if plain:
            writer.add_tensor(gguf_name(name), values)
        elif self.storage is GGMLQuantizationType.F16:
            writer.add_tensor(gguf_name(name), values.astype(np.float16))
        else:
            raw = quantize(values, self.storage)
            writer.add_tensor(gguf_name(name), raw, raw_dtype=self.storage)


def gguf_name(name: str) -> str:
    outer = {"embed": "token_embd", "norm": "output_norm", "head": "output"}
    if name in outer:
        return outer[name] + ".weight"
    _, layer, part = name.split(".")
    short = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
    short |= {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    return f"blk.{layer}.{short.get(part, part)}.weight"


def folder_name(name: str) -> str:
    outer = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    if name in outer:
        return outer[name] + ".weight"
    _, layer, part = name.split(".")
    long = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    long |= {part: f"self_attn.{part}_proj" for part in ("q", "k", "v", "o")}
    long |= {part: f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    return f"model.layers.{layer}.{long[part]}.weight"


def write_folder(path: Path, spec: ModelSpec, shards: int = 1, **config: object) -> Path:
    """A Hugging Face folder with `random_weights(spec)`; extra keywords go into config.json."""
    path.mkdir(parents=True, exist_ok=True)
    weights = {folder_name(name): value for name, value in random_weights(spec).items()}
    names = sorted(weights)
    if shards == 1:
        save_file(weights, path / "model.safetensors")
    else:
        places = {name: f"part-{index % shards}.safetensors" for index, name in enumerate(names)}
        for shard in set(places.values()):
            part = {name: weights[name] for name in names if places[name] == shard}
            save_file(part, path / shard)
        index = json.dumps({"metadata": {}, "weight_map": places})
        (path / "model.safetensors.index.json").write_text(index)
    fields = {
        "model_type": "llama",
        "num_hidden_layers": spec.layers,
        "hidden_size": spec.hidden,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context,
        "rope_theta": spec.rope_base,
        "rms_norm_eps": spec.rms_eps,
        "tie_word_embeddings": spec.tied,
        "eos_token_id": 257,
    }
    (path / "config.json").write_text(json.dumps(fields | config))
    open_hashchain().tokenizer().save(str(path / "tokenizer.json"))
    settings = {"bos_token": {"content": "<|im_start|>"}, "eos_token": END, "chat_template": "hi"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path
