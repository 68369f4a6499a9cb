"""Every architecture's forward pass from its paper's equations: float64, whole sequence, no cache.

Takes the publisher's configuration and weights, nothing of ours: Touvron et al. (Llama, 2023),
Jiang et al. (Mistral 7B, 2023), Qwen Team (Qwen2, 2024; Qwen3, 2025), Gemma Team (Gemma 2, 2024;
Gemma 3, 2025). Rotation as complex multiplication (Su et al., RoFormer, 2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..checkpoint.tiny_families import Config, Weights, head_dim

Array = NDArray[np.float64]


def all_logits(config: Config, weights: Weights, tokens: Sequence[int]) -> Array:
    """[token, vocab]"""
    return _Forward(config, weights, len(tokens)).logits(tokens)


@dataclass
class _Forward:
    config: Config
    weights: Weights
    count: int

    def logits(self, tokens: Sequence[int]) -> Array:
        embedding = self._weight("model.embed_tokens.weight")
        hidden = embedding[list(tokens)]
        if self._gemma:
            hidden = hidden * math.sqrt(self.config["hidden_size"])
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            hidden = self._block(layer, at, hidden)
        hidden = self._norm(hidden, "model.norm.weight")
        tied = self.config["tie_word_embeddings"]
        scores = hidden @ (embedding if tied else self._weight("lm_head.weight")).T
        return _capped(scores, self.config.get("final_logit_softcapping"))

    @property
    def _gemma(self) -> bool:
        return str(self.config["model_type"]).startswith("gemma")

    def _weight(self, name: str) -> Array:
        return self.weights[name].astype(np.float64)

    def _norm(self, rows: Array, name: str) -> Array:
        gain = self._weight(name) + (1.0 if self._gemma else 0.0)
        size = np.sqrt((rows**2).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return np.asarray(rows / size * gain)

    def _block(self, layer: int, at: str, hidden: Array) -> Array:
        mixed = self._attention(layer, at, self._norm(hidden, at + "input_layernorm.weight"))
        if not self._gemma:
            hidden = hidden + mixed
            rows = self._norm(hidden, at + "post_attention_layernorm.weight")
            return hidden + self._mlp(at, rows)
        hidden = hidden + self._norm(mixed, at + "post_attention_layernorm.weight")
        rows = self._norm(hidden, at + "pre_feedforward_layernorm.weight")
        after = self._norm(self._mlp(at, rows), at + "post_feedforward_layernorm.weight")
        return hidden + after

    def _mlp(self, at: str, rows: Array) -> Array:
        gate = rows @ self._weight(at + "mlp.gate_proj.weight").T
        up = rows @ self._weight(at + "mlp.up_proj.weight").T
        if self._gemma:
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            gate = 0.5 * gate * (1 + np.tanh(inner))
        else:
            gate = gate / (1 + np.exp(-gate))
        return np.asarray((gate * up) @ self._weight(at + "mlp.down_proj.weight").T)

    def _attention(self, layer: int, at: str, rows: Array) -> Array:
        size, config = head_dim(self.config), self.config
        heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
        queries = self._heads(at, "q", rows, heads)
        keys = self._heads(at, "k", rows, shared)
        values = self._heads(at, "v", rows, shared)
        if f"{at}self_attn.q_norm.weight" in self.weights:
            queries = self._norm(queries, at + "self_attn.q_norm.weight")
            keys = self._norm(keys, at + "self_attn.k_norm.weight")
        window = _window(config, layer)
        queries, keys = self._turned(queries, window), self._turned(keys, window)
        scale = config.get("query_pre_attn_scalar", size) ** -0.5
        distance = np.arange(self.count)[:, None] - np.arange(self.count)
        seen = (distance >= 0) & (distance < (window or self.count))
        mixed = []
        for head in range(heads):
            key, value = keys[head * shared // heads], values[head * shared // heads]
            scores = _capped(queries[head] @ key.T * scale, config.get("attn_logit_softcapping"))
            scores = np.where(seen, scores, -np.inf)
            chance = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(chance / chance.sum(-1, keepdims=True) @ value)
        return np.concatenate(mixed, -1) @ self._weight(at + "self_attn.o_proj.weight").T

    def _heads(self, at: str, part: str, rows: Array, count: int) -> Array:
        """[head, token, head_dim]"""
        name = f"{at}self_attn.{part}_proj."
        mixed = rows @ self._weight(name + "weight").T
        if name + "bias" in self.weights:
            mixed = mixed + self._weight(name + "bias")
        return np.asarray(mixed.reshape(self.count, count, -1).swapaxes(0, 1))

    def _turned(self, heads: Array, window: int | None) -> Array:
        half = heads.shape[-1] // 2
        speeds, magnitude = rope_speeds(self.config, half, local=window is not None)
        turn = magnitude * np.exp(1j * np.outer(np.arange(self.count), speeds))
        turned = (heads[..., :half] + 1j * heads[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag], -1)


def _capped(scores: Array, cap: float | None) -> Array:
    return np.asarray(cap * np.tanh(scores / cap) if cap else scores)


def _window(config: Config, layer: int) -> int | None:
    """Positions that this layer's queries see, their own included; None: all."""
    window = config.get("sliding_window")
    match config["model_type"]:
        case "mistral":
            local = True
        case "qwen2":
            local = bool(config.get("use_sliding_window")) and layer >= config["max_window_layers"]
        case "gemma2":
            local = layer % 2 == 0
        case "gemma3_text":
            local = layer % 6 != 5
        case _:
            local = False
    return window if local else None


def rope_speeds(config: Config, half: int, local: bool = False) -> tuple[Array, float]:
    """Radians a position per pair, and what sines and cosines are multiplied by."""
    base = config["rope_theta"]
    if local and config["model_type"] == "gemma3_text":
        return _powers(config["rope_local_base_freq"], half), 1.0
    speeds, rope = _powers(base, half), config.get("rope_scaling")
    if rope is None:
        return speeds, 1.0
    factor, context = rope.get("factor", 1.0), config["max_position_embeddings"]
    original = rope.get("original_max_position_embeddings", context)
    match rope.get("rope_type", rope.get("type")):
        case "linear":
            return speeds / factor, 1.0
        case "dynamic":
            ratio = factor * context / original - (factor - 1)
            return _powers(base * ratio ** (2 * half / (2 * half - 2)), half), 1.0
        case "llama3":
            return np.array([_llama3(speed, rope, original) for speed in speeds]), 1.0
        case "yarn":
            return _yarn(speeds, base, factor, original), 0.1 * math.log(factor) + 1
        case "longrope":
            ratio = context / original
            magnitude = math.sqrt(1 + math.log(ratio) / math.log(original))
            return speeds / np.array(rope["long_factor"]), magnitude
        case other:
            raise AssertionError(other)


def _powers(base: float, half: int) -> Array:
    return np.array([base ** (-pair / half) for pair in range(half)])


def _llama3(speed: float, rope: Config, original: int) -> float:
    wave = 2 * math.pi / speed
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    if wave < original / high:
        return speed
    if wave > original / low:
        return speed / float(rope["factor"])
    smooth = (original / wave - low) / (high - low)
    return float((1 - smooth) * speed / rope["factor"] + smooth * speed)


def _yarn(speeds: Array, base: float, factor: float, original: int) -> Array:
    """Each pair keeps its speed by the share 1 - ramp; the ramp runs between the pairs that turn
    32 times and once within the original context."""
    pairs = len(speeds)

    def pair_of(turns: float) -> float:
        return pairs * math.log(original / (2 * math.pi * turns)) / math.log(base)

    low, high = max(0, math.floor(pair_of(32))), min(2 * pairs - 1, math.ceil(pair_of(1)))
    ramp = np.array([min(1.0, max(0.0, (pair - low) / (high - low))) for pair in range(pairs)])
    return np.asarray((1 - ramp) * speeds + ramp * speeds / factor)
