"""Paged attention on the CPU: copy an item's pages together, then let torch multiply.

Copying whole strips runs near memory speed and is small beside the products. Items with one
query are padded to a common length and share one product; others take 128 queries at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as functional

from shared.engine.batch import StepItem
from shared.engine.paged_kv import PagedKv

_QUERY_TILE: Final = 128
_MAX_GROUP_PAGES: Final = 4_096


class Workspace:
    """Scratch memory that keeps its size from step to step, and the causal mask."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._buffer = torch.empty(0, dtype=dtype)
        self._mask = torch.empty(_QUERY_TILE, 0, dtype=dtype)

    def take(self, rows: int, columns: int) -> torch.Tensor:
        """[rows, columns], contents undefined; valid until the next call."""
        if self._buffer.numel() < rows * columns:
            self._buffer = torch.empty(rows * columns, dtype=self._buffer.dtype)
        return self._buffer[: rows * columns].view(rows, columns)

    def mask(self, queries: int, keys: int) -> torch.Tensor:
        """[queries, keys] to add to scores when the last query stands at the last key."""
        width = self._mask.shape[1]
        if width < keys:
            width = max(keys, 2 * width)
            ahead = torch.arange(width - 1, -1, -1) < torch.arange(_QUERY_TILE - 1, -1, -1)[:, None]
            self._mask = torch.zeros(_QUERY_TILE, width, dtype=self._mask.dtype)
            self._mask.masked_fill_(ahead, float("-inf"))
        return self._mask[_QUERY_TILE - queries :, width - keys :]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """An item with several queries."""

    rows: slice
    start: int
    strips: torch.Tensor
    """[2, kv_head, page] flat."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Items with one query each, padded to the pages of the longest."""

    rows: torch.Tensor
    lengths: tuple[int, ...]
    strips: torch.Tensor
    """[2, item, kv_head, page] flat."""
    hidden: torch.Tensor
    """[item, 1, 1, position]: beyond the item's end."""


class HostAttention:
    """One step's plan; see `StepAttention`."""

    def __init__(
        self, kv: PagedKv, items: Sequence[StepItem], heads: int, workspace: Workspace
    ) -> None:
        self._kv = kv
        self._heads = heads
        self._workspace = workspace
        self._scale = kv.layout.head_dim**-0.5
        self._chunks: list[_Chunk] = []
        single: list[tuple[int, StepItem]] = []
        row = 0
        for item in items:
            if len(item.tokens) == 1:
                single.append((row, item))
            else:
                self._chunks.append(self._chunk(row, item))
            row += len(item.tokens)
        self._groups = [self._group(members) for members in _alike(single, self._pages)]

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(queries)
        for chunk in self._chunks:
            self._attend_chunk(layer, chunk, queries[chunk.rows], out[chunk.rows])
        for group in self._groups:
            out[group.rows] = self._attend_group(layer, group, queries[group.rows])
        return out

    def _pages(self, item: StepItem) -> int:
        return -(-(item.start + len(item.tokens)) // self._kv.layout.block_tokens)

    def _chunk(self, row: int, item: StepItem) -> _Chunk:
        table = torch.tensor(item.page_table[: self._pages(item)])
        rows = slice(row, row + len(item.tokens))
        return _Chunk(rows, item.start, self._kv.page_strips(table).flatten())

    def _group(self, members: Sequence[tuple[int, StepItem]]) -> _Group:
        width = max(self._pages(item) for _, item in members)
        tables, lengths = [], []
        for _, item in members:
            pages = item.page_table[: self._pages(item)]
            tables.append([*pages, *[pages[-1]] * (width - len(pages))])
            lengths.append(item.start + 1)
        positions = torch.arange(width * self._kv.layout.block_tokens)
        return _Group(
            rows=torch.tensor([row for row, _ in members]),
            lengths=tuple(lengths),
            strips=self._kv.page_strips(torch.tensor(tables)).flatten(),
            hidden=(positions >= torch.tensor(lengths)[:, None])[:, None, None],
        )

    def _gather(self, layer: int, strips: torch.Tensor, items: int) -> torch.Tensor:
        """[k|v, item, kv_head, position, head_dim], valid until the next gather."""
        layout = self._kv.layout
        source = self._kv.strips
        together = self._workspace.take(strips.numel(), source.shape[1])
        numbers = strips + layer * self._kv.layer_strips
        torch.index_select(source, 0, numbers, out=together)
        return together.view(2, items, layout.kv_heads, -1, layout.head_dim)

    def _attend_chunk(
        self, layer: int, chunk: _Chunk, queries: torch.Tensor, out: torch.Tensor
    ) -> None:
        keys, values = self._gather(layer, chunk.strips, 1)
        by_head = queries.transpose(0, 1).unsqueeze(0)
        for first in range(0, len(queries), _QUERY_TILE):
            last = min(len(queries), first + _QUERY_TILE)
            end = chunk.start + last
            tile = functional.scaled_dot_product_attention(
                by_head[:, :, first:last],
                keys[:, :, :end],
                values[:, :, :end],
                attn_mask=self._workspace.mask(last - first, end),
                enable_gqa=True,
            )
            out[first:last] = tile[0].transpose(0, 1)

    def _attend_group(self, layer: int, group: _Group, queries: torch.Tensor) -> torch.Tensor:
        layout = self._kv.layout
        keys, values = self._gather(layer, group.strips, len(group.lengths))
        for item, length in enumerate(group.lengths):
            # Stale bytes may be anything, also NaN, which a zero weight would not silence.
            values[item, :, length:] = 0
        by_head = queries.view(len(queries), layout.kv_heads, -1, layout.head_dim)
        scores = torch.matmul(by_head, keys.transpose(-1, -2)).float() * self._scale
        weights = scores.masked_fill_(group.hidden, float("-inf")).softmax(-1)
        return torch.matmul(weights.to(queries.dtype), values).view_as(queries)


def _alike(
    single: Sequence[tuple[int, StepItem]], pages: Callable[[StepItem], int]
) -> list[list[tuple[int, StepItem]]]:
    """Groups in which padding at most doubles an item, of bounded size."""
    groups: list[list[tuple[int, StepItem]]] = []
    width = 0
    for row, item in sorted(single, key=lambda one: pages(one[1]), reverse=True):
        fits = groups and 2 * pages(item) >= width
        if not fits or (len(groups[-1]) + 1) * width > _MAX_GROUP_PAGES:
            groups.append([])
            width = pages(item)
        groups[-1].append((row, item))
    return groups
