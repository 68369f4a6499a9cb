"""Names and shapes of a decoder-only model's tensors, and where they are read from.

One internal naming for all file formats. Matrices are [out, in]; q and k rows are in the
rotate-halves order, whatever the file stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared.checkpoint.spec import ModelSpec
from shared.errors import CheckpointError

Shape = tuple[int, ...]


class TensorSource(Protocol):
    """Reads one tensor at a time; nothing is read before it is asked for."""

    def read(self, name: str) -> NDArray[np.float32]:
        """A fresh, writable array in the internal order. Raises CheckpointError."""
        ...

    def has(self, name: str) -> bool:
        """Whether an optional tensor ('rope_factors') is in the file."""
        ...


class NoTensors:
    """The source of a model without weights."""

    def read(self, name: str) -> NDArray[np.float32]:
        raise CheckpointError(f"this model has no weights (asked for {name})")

    def has(self, name: str) -> bool:
        return False


def tensor_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every tensor that the model needs, with its shape."""
    shapes: dict[str, Shape] = {"embed": (spec.vocab, spec.hidden), "norm": (spec.hidden,)}
    if not spec.tied:
        shapes["head"] = (spec.vocab, spec.hidden)
    for layer in range(spec.layers):
        for part, shape in layer_shapes(spec).items():
            shapes[f"layers.{layer}.{part}"] = shape
    return shapes


def layer_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """The tensors of one layer."""
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    shapes: dict[str, Shape] = {
        "attn_norm": (spec.hidden,),
        "q": (query, spec.hidden),
        "k": (key, spec.hidden),
        "v": (key, spec.hidden),
        "o": (spec.hidden, query),
        "ffn_norm": (spec.hidden,),
        "gate": (spec.ffn, spec.hidden),
        "up": (spec.ffn, spec.hidden),
        "down": (spec.hidden, spec.ffn),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (query,), "k_bias": (key,), "v_bias": (key,)}
    if spec.qk_norm:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.post_norms:
        shapes |= {"attn_post_norm": (spec.hidden,), "ffn_post_norm": (spec.hidden,)}
    return shapes


def check_tensors(
    spec: ModelSpec, stored: Mapping[str, Shape], names: Mapping[str, str], origin: str
) -> None:
    """Every needed tensor is stored under `names[internal]` with the right shape, or
    CheckpointError."""
    needed = tensor_shapes(spec)
    missing = [names[name] for name in needed if names[name] not in stored]
    if missing:
        raise CheckpointError(
            f"{origin}: {len(missing)} of {len(needed)} tensors are missing, first {missing[0]}"
        )
    for name, shape in needed.items():
        found = stored[names[name]]
        if found != shape:
            raise CheckpointError(
                f"{origin}: tensor {names[name]} has shape {list(found)}, expected {list(shape)}"
            )
