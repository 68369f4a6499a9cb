"""GPUs as their datasheets have them, and models as their config files do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_GIGA: Final = 1e9
_TERA: Final = 1e12
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU: dense 16-bit FLOP/s, memory, and links in bytes/s (one direction)."""

    name: str
    flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    peer_bytes_per_s: float
    """To another GPU of the same host (NVLink, else PCIe)."""
    network_bytes_per_s: float
    """The card that usually comes with it."""


DEVICES: Final = {
    device.name: device
    for device in (
        Device("a100", 312 * _TERA, 80 * _GIB, 2_039 * _GIGA, 300 * _GIGA, 25 * _GIGA),
        Device("h100", 989 * _TERA, 80 * _GIB, 3_350 * _GIGA, 450 * _GIGA, 50 * _GIGA),
        Device("h200", 989 * _TERA, 141 * _GIB, 4_800 * _GIGA, 450 * _GIGA, 50 * _GIGA),
        Device("b200", 2_250 * _TERA, 180 * _GIB, 8_000 * _GIGA, 900 * _GIGA, 50 * _GIGA),
        Device("l40s", 362 * _TERA, 48 * _GIB, 864 * _GIGA, 32 * _GIGA, 25 * _GIGA),
        Device("h20", 148 * _TERA, 96 * _GIB, 4_000 * _GIGA, 450 * _GIGA, 50 * _GIGA),
        Device("a6000", 155 * _TERA, 48 * _GIB, 768 * _GIGA, 32 * _GIGA, 12.5 * _GIGA),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer, 16 bits a weight. A mixture of experts reads all it routes to."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Width of one expert, or of the dense block."""
    vocab: int
    gated: bool = True
    """Three matrices in the feed-forward block instead of two."""
    experts: int = 1
    routed: int = 1
    """Experts that one token goes through."""

    @property
    def attention_weights(self) -> int:
        queries = self.hidden * self.heads * self.head_dim
        keys = self.hidden * self.kv_heads * self.head_dim
        return 2 * queries + 2 * keys

    @property
    def expert_weights(self) -> int:
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def weights(self) -> int:
        """All, with the embedding once."""
        block = self.attention_weights + self.experts * self.expert_weights
        return self.layers * block + self.vocab * self.hidden

    @property
    def active_weights(self) -> int:
        """That one token is multiplied with, without the embedding and the last projection:
        a prompt needs that of its last token alone."""
        return self.layers * (self.attention_weights + self.routed * self.expert_weights)

    @property
    def kv_token_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


def _llama(name: str, sizes: tuple[int, int, int, int, int, int, int]) -> ModelShape:
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab = sizes
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
    )


def _opt(name: str, layers: int, hidden: int, heads: int) -> ModelShape:
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=50_272,
        gated=False,
    )


MODELS: Final = {
    model.name: model
    for model in (
        _opt("opt-13b", 40, 5_120, 40),
        _opt("opt-66b", 64, 9_216, 72),
        _opt("opt-175b", 96, 12_288, 96),
        _llama("smollm2-135m", (30, 576, 9, 3, 64, 1_536, 49_152)),
        _llama("llama-2-7b", (32, 4_096, 32, 32, 128, 11_008, 32_000)),
        _llama("llama-2-13b", (40, 5_120, 40, 40, 128, 13_824, 32_000)),
        _llama("llama-3-8b", (32, 4_096, 32, 8, 128, 14_336, 128_256)),
        _llama("llama-3-70b", (80, 8_192, 64, 8, 128, 28_672, 128_256)),
        _llama("mistral-7b", (32, 4_096, 32, 8, 128, 14_336, 32_000)),
        _llama("yi-34b", (60, 7_168, 56, 8, 128, 20_480, 64_000)),
        _llama("qwen2.5-7b", (28, 3_584, 28, 4, 128, 18_944, 152_064)),
        _llama("qwen2.5-72b", (80, 8_192, 64, 8, 128, 29_568, 152_064)),
        _llama("qwen3-32b", (64, 5_120, 64, 8, 128, 25_600, 151_936)),
        ModelShape(
            name="mixtral-8x7b",
            layers=32,
            hidden=4_096,
            heads=32,
            kv_heads=8,
            head_dim=128,
            ffn=14_336,
            vocab=32_000,
            experts=8,
            routed=2,
        ),
        ModelShape(
            name="qwen3-30b-a3b",
            layers=48,
            hidden=2_048,
            heads=32,
            kv_heads=4,
            head_dim=128,
            ffn=768,
            vocab=151_936,
            experts=128,
            routed=8,
        ),
    )
}
