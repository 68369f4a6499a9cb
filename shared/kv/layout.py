"""How the KV cache of one block lies in a page: shape, size, and a digest to compare it by.

Knows nothing of devices, weights or who stores the page.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

LAYOUT_VERSION: Final = 1
"""Grows when the bytes of a page change meaning; part of every block name and digest."""

DTYPE_BYTES: Final[dict[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class PageLayout:
    """A page holds `block_tokens` positions of all layers, keys and values, in one piece:

        page = [layer][k|v][kv_head][token][head_dim]      (innermost last, no padding)

    so a range of heads is contiguous for each (layer, k|v). Raises ValueError when a size is
    not positive or the dtype is unknown.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: str

    def __post_init__(self) -> None:
        if min(self.layers, self.kv_heads, self.head_dim, self.block_tokens) < 1:
            raise ValueError("page layout has a size below 1")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"page layout has dtype {self.dtype!r}, not one of {[*DTYPE_BYTES]}")

    def shard(self, parts: int) -> PageLayout:
        """Of the pages that one of `parts` equal ranks holds: a range of the KV heads. Raises
        ValueError when the heads do not divide."""
        if parts < 1 or self.kv_heads % parts:
            raise ValueError(f"{self.kv_heads} KV heads cannot be split over {parts} ranks")
        return replace(self, kv_heads=self.kv_heads // parts)

    @property
    def page_shape(self) -> tuple[int, int, int, int, int]:
        """(layers, 2, kv_heads, block_tokens, head_dim)."""
        return (self.layers, 2, self.kv_heads, self.block_tokens, self.head_dim)

    @property
    def page_bytes(self) -> int:
        elements = self.layers * 2 * self.kv_heads * self.block_tokens * self.head_dim
        return elements * DTYPE_BYTES[self.dtype]

    @property
    def digest(self) -> str:
        """16 hex characters; two workers can exchange pages only when theirs are equal."""
        shape = ",".join(str(size) for size in self.page_shape)
        text = f"baton-page-layout v{LAYOUT_VERSION} {self.dtype} {shape}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
