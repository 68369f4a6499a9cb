"""A run of neighbouring KV heads of every (layer, keys or values) of a page: what two workers of
unlike tensor parallelism have in common. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from shared.kv.layout import PageLayout


@dataclass(frozen=True, slots=True)
class HeadRun:
    """Heads [first, first + count) of memory laid out as `layout`."""

    layout: PageLayout
    first: int
    count: int

    @property
    def rows(self) -> int:
        """Runs in a page: one for each layer's keys and values."""
        return 2 * self.layout.layers

    @property
    def head_bytes(self) -> int:
        """Of one head of one row."""
        return self.layout.page_bytes // (self.rows * self.layout.kv_heads)
