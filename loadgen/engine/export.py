"""Writes a checkpoint as a Hugging Face folder, for peers that read no GGUF."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save_file

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.families import folder_names
from shared.checkpoint.spec import ModelSpec
from shared.errors import CheckpointError


def export(checkpoint: Checkpoint, folder: Path) -> Path:
    """The folder with config.json, which asks for bfloat16 as the published model does, and
    float32 weights. Raises
    CheckpointError for what a plain Llama cannot say."""
    spec = checkpoint.spec
    if spec.architecture != "llama" or spec.rope_scaling is not None:
        raise CheckpointError(f"only plain llama models are exported, not {spec.architecture!r}")
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        theirs: checkpoint.tensors.read(ours)
        for ours, theirs in folder_names(spec).items()
        if checkpoint.tensors.has(ours)
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(spec), indent=1))
    return folder


def _config(spec: ModelSpec) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
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
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
