"""The Llama forward pass written a second time: float64, whole sequence, no cache, no paging."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.checkpoint import Checkpoint

Array = NDArray[np.float64]


def last_logits(checkpoint: Checkpoint, tokens: Sequence[int]) -> Array:
    """Logits after the last token."""
    spec = checkpoint.spec
    hidden = _read(checkpoint, "embed")[list(tokens)]
    for layer in range(spec.layers):
        hidden = hidden + _attention(checkpoint, f"layers.{layer}.", hidden)
        hidden = hidden + _feed_forward(checkpoint, f"layers.{layer}.", hidden)
    head = _read(checkpoint, "embed" if spec.tied else "head")
    return np.asarray(_norm(checkpoint, hidden, "norm")[-1] @ head.T)


def _read(checkpoint: Checkpoint, name: str) -> Array:
    return checkpoint.tensors.read(name).astype(np.float64)


def _norm(checkpoint: Checkpoint, hidden: Array, name: str) -> Array:
    mean = (hidden**2).mean(-1, keepdims=True)
    return hidden / np.sqrt(mean + checkpoint.spec.rms_eps) * _read(checkpoint, name)


def _attention(checkpoint: Checkpoint, prefix: str, hidden: Array) -> Array:
    spec, count = checkpoint.spec, len(hidden)
    rows = _norm(checkpoint, hidden, prefix + "attn_norm")
    queries = rows @ _read(checkpoint, prefix + "q").T
    keys = rows @ _read(checkpoint, prefix + "k").T
    values = rows @ _read(checkpoint, prefix + "v").T
    mixed = np.zeros((count, spec.heads * spec.head_dim))
    for head in range(spec.heads):
        own = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
        shared = head // spec.queries_per_kv_head
        theirs = slice(shared * spec.head_dim, (shared + 1) * spec.head_dim)
        query, key = _rotate(checkpoint, queries[:, own]), _rotate(checkpoint, keys[:, theirs])
        scores = query @ key.T / math.sqrt(spec.head_dim)
        scores[np.triu_indices(count, 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed[:, own] = weights / weights.sum(-1, keepdims=True) @ values[:, theirs]
    return mixed @ _read(checkpoint, prefix + "o").T


def _rotate(checkpoint: Checkpoint, rows: Array) -> Array:
    half = checkpoint.spec.head_dim // 2
    turned = np.empty_like(rows)
    for pair in range(half):
        speed = _speed(checkpoint, pair)
        angle = np.arange(len(rows)) * speed
        first, second = rows[:, pair], rows[:, pair + half]
        turned[:, pair] = first * np.cos(angle) - second * np.sin(angle)
        turned[:, pair + half] = second * np.cos(angle) + first * np.sin(angle)
    return turned


def _speed(checkpoint: Checkpoint, pair: int) -> float:
    spec = checkpoint.spec
    speed = spec.rope_base ** (-2 * pair / spec.head_dim)
    scaling = spec.rope_scaling
    if scaling is None:
        return speed
    if scaling.kind == "linear":
        return speed / scaling.factor
    wave = 2 * math.pi / speed
    if wave < scaling.original_context / scaling.high_frequency_factor:
        return speed
    if wave > scaling.original_context / scaling.low_frequency_factor:
        return speed / scaling.factor
    smooth = (scaling.original_context / wave - scaling.low_frequency_factor) / (
        scaling.high_frequency_factor - scaling.low_frequency_factor
    )
    return (1 - smooth) * speed / scaling.factor + smooth * speed


def _feed_forward(checkpoint: Checkpoint, prefix: str, hidden: Array) -> Array:
    rows = _norm(checkpoint, hidden, prefix + "ffn_norm")
    gate = rows @ _read(checkpoint, prefix + "gate").T
    up = rows @ _read(checkpoint, prefix + "up").T
    return (gate / (1 + np.exp(-gate)) * up) @ _read(checkpoint, prefix + "down").T
