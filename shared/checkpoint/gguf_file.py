"""Opens a GGUF file of the llama architecture: shape, text side and dequantised tensors.

GGUF stores q and k rows in neighbouring-pairs rotary order; reading undoes that.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.fingerprint import digest_files
from shared.checkpoint.gguf_header import GgufHeader, StoredTensor, Value, read_header
from shared.checkpoint.gguf_text import text_side
from shared.checkpoint.spec import ModelSpec, RopeScaling
from shared.checkpoint.tensors import check_tensors, layer_shapes, tensor_shapes
from shared.errors import CheckpointError

Kind = TypeVar("Kind", int, float, str, bool)

_LAYER_NAMES: Final = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_OUTER_NAMES: Final = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "rope_factors": "rope_freqs.weight",
}


def open_gguf(path: Path) -> Checkpoint:
    """Read the header and check that the model is complete and of our kind."""
    header = read_header(path)
    try:
        spec = _spec(header)
        names = _names(spec)
        shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
        check_tensors(spec, shapes, names, str(path))
        text = text_side(header.metadata, spec.vocab)
    except CheckpointError as error:
        if error.message.startswith(str(path)):
            raise
        raise CheckpointError(f"{path}: {error.message}") from error
    return Checkpoint(
        name=path.stem,
        backend="torch",
        spec=spec,
        text=text,
        tensors=GgufTensors(path, header, spec, names),
        fingerprint=partial(digest_files, [path]),
    )


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


def _spec(header: GgufHeader) -> ModelSpec:
    metadata = header.metadata
    architecture = field(metadata, "general.architecture", str, None)
    if architecture != "llama":
        raise CheckpointError(f"architecture {architecture!r} is not supported (llama)")
    if field(metadata, "split.count", int, 1) > 1:
        raise CheckpointError("split GGUF files are not supported; merge the parts first")
    if field(metadata, "llama.expert_count", int, 0) > 0:
        raise CheckpointError("mixture-of-experts models are not supported")
    hidden = field(metadata, "llama.embedding_length", int, None)
    heads = field(metadata, "llama.attention.head_count", int, None)
    head_dim = field(metadata, "llama.attention.key_length", int, hidden // max(1, heads))
    rotary = field(metadata, "llama.rope.dimension_count", int, head_dim)
    if rotary != head_dim:
        raise CheckpointError(f"partial rotary embedding ({rotary} of {head_dim}) is not supported")
    embedding = header.tensors.get("token_embd.weight")
    return ModelSpec(
        architecture=architecture,
        layers=field(metadata, "llama.block_count", int, None),
        hidden=hidden,
        heads=heads,
        kv_heads=field(metadata, "llama.attention.head_count_kv", int, heads),
        head_dim=head_dim,
        ffn=field(metadata, "llama.feed_forward_length", int, None),
        vocab=embedding.shape[0] if embedding else field(metadata, "llama.vocab_size", int, None),
        context=field(metadata, "llama.context_length", int, None),
        rope_base=field(metadata, "llama.rope.freq_base", float, 10_000.0),
        rms_eps=_epsilon(field(metadata, "llama.attention.layer_norm_rms_epsilon", float, None)),
        tied="output.weight" not in header.tensors,
        rope_scaling=_scaling(metadata),
    ).validated()


def _epsilon(stored: float) -> float:
    """The decimal number behind its float32 image: 1e-5, not 9.999999747e-06."""
    return float(str(np.float32(stored)))


def _scaling(metadata: dict[str, Value]) -> RopeScaling | None:
    kind = field(metadata, "llama.rope.scaling.type", str, "none")
    if kind == "none":
        return None
    return RopeScaling(kind, field(metadata, "llama.rope.scaling.factor", float, 1.0))


def _names(spec: ModelSpec) -> dict[str, str]:
    names = dict(_OUTER_NAMES)
    for layer in range(spec.layers):
        for part in layer_shapes(spec):
            names[f"layers.{layer}.{part}"] = f"blk.{layer}.{_LAYER_NAMES[part]}.weight"
    return names


class GgufTensors:
    """Dequantises tensors from the file, one at a time."""

    def __init__(
        self, path: Path, header: GgufHeader, spec: ModelSpec, names: dict[str, str]
    ) -> None:
        self._path = path
        self._stored = header.tensors
        self._spec = spec
        self._names = names
        self._known = tensor_shapes(spec)

    def has(self, name: str) -> bool:
        return self._names.get(name) in self._stored

    def read(self, name: str) -> NDArray[np.float32]:
        stored = self._stored.get(self._names.get(name, ""))
        if stored is None:
            raise CheckpointError(f"{self._path}: no tensor {name!r}")
        rows = self._dequantised(stored).reshape(stored.shape)
        match name.rpartition(".")[2]:
            case "q":
                return _halves(rows, self._spec.heads)
            case "k":
                return _halves(rows, self._spec.kv_heads)
            case _:
                return rows

    def _dequantised(self, stored: StoredTensor) -> NDArray[np.float32]:
        try:
            raw = np.fromfile(self._path, np.uint8, stored.size_bytes, offset=stored.offset)
            rows = raw.reshape(stored.size_bytes // _row_bytes(stored), -1)
            values = dequantize(rows, GGMLQuantizationType(stored.storage))
        except OSError as error:
            raise CheckpointError(f"cannot read {self._path}: {error.strerror}") from error
        except (ValueError, NotImplementedError) as error:
            raise CheckpointError(f"{self._path}: a tensor cannot be read ({error})") from error
        return np.array(values, dtype=np.float32)


def _row_bytes(stored: StoredTensor) -> int:
    rows = 1
    for size in stored.shape[:-1]:
        rows *= size
    return stored.size_bytes // rows


def _halves(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo GGUF's row order: stored rows (2i, 2i+1) of a head belong at (i, i + half)."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
