"""Paged attention on the CPU: copy an item's pages together, then let torch multiply.

Copying whole strips runs near memory speed and is small beside the products. Items with one
query are padded to a common length and share one product; others take 128 queries at a time.
A layer with a window copies only the pages that its queries can see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.nn.functional as functional

from shared.engine.attention_rules import AttentionRules, capped
from shared.engine.batch import StepItem
from shared.engine.paged_kv import PagedKv

_QUERY_TILE: Final = 128
_MAX_GROUP_PAGES: Final = 4_096


class Workspace:
    """Scratch memory that keeps its size from step to step, and the causal mask."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._buffer = torch.empty(0, dtype=dtype)
        self._mask = torch.empty(_QUERY_TILE, 0, dtype=dtype)
        self._bands: dict[int, torch.Tensor] = {}

    def take(self, rows: int, columns: int) -> torch.Tensor:
        """[rows, columns], contents undefined; valid until the next call."""
        if self._buffer.numel() < rows * columns:
            self._buffer = torch.empty(rows * columns, dtype=self._buffer.dtype)
        return self._buffer[: rows * columns].view(rows, columns)

    def mask(self, queries: int, keys: int, window: int) -> torch.Tensor:
        """[queries, keys] to add to scores when the last query stands at the last key. With a
        window no query may see all of more than window + queries - 1 keys."""
        if window:
            band = self._band(window)
            return band[_QUERY_TILE - queries :, band.shape[1] - keys :]
        width = self._mask.shape[1]
        if width < keys:
            width = max(keys, 2 * width)
            ahead = torch.arange(width - 1, -1, -1) < torch.arange(_QUERY_TILE - 1, -1, -1)[:, None]
            self._mask = torch.zeros(_QUERY_TILE, width, dtype=self._mask.dtype)
            self._mask.masked_fill_(ahead, float("-inf"))
        return self._mask[_QUERY_TILE - queries :, width - keys :]

    def _band(self, window: int) -> torch.Tensor:
        """[tile, window + tile - 1]: each query sees the last `window` keys up to its own."""
        band = self._bands.get(window)
        if band is None:
            shape = (_QUERY_TILE, window + _QUERY_TILE - 1)
            seen = torch.ones(shape, dtype=torch.bool).triu_().tril_(window - 1)
            band = torch.zeros(shape, dtype=self._mask.dtype).masked_fill_(~seen, float("-inf"))
            self._bands[window] = band
        return band


@dataclass(frozen=True, slots=True)
class _Chunk:
    """An item with several queries; `start` counts from the first page that is looked at."""

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
    """[item, 1, 1, position]: beyond the item's end, or before its window."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """One step's work in the layers of one window."""

    window: int
    chunks: list[_Chunk]
    groups: list[_Group]


class HostAttention:
    """One step's plan; see `StepAttention`."""

    def __init__(
        self,
        kv: PagedKv,
        items: Sequence[StepItem],
        rules: AttentionRules,
        workspace: Workspace,
    ) -> None:
        self._kv = kv
        self._rules = rules
        self._workspace = workspace
        windows = set(rules.windows) or {0}
        self._plans = {window: self._plan(items, window) for window in windows}

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        plan = self._plans[self._rules.window(layer)]
        out = torch.empty_like(queries)
        for chunk in plan.chunks:
            self._attend_chunk(layer, plan.window, chunk, queries[chunk.rows], out[chunk.rows])
        for group in plan.groups:
            out[group.rows] = self._attend_group(layer, group, queries[group.rows])
        return out

    def _plan(self, items: Sequence[StepItem], window: int) -> _Plan:
        chunks: list[_Chunk] = []
        single: list[tuple[int, StepItem]] = []
        row = 0
        for item in items:
            seen = self._seen(item, window)
            if len(item.tokens) == 1:
                single.append((row, seen))
            else:
                chunks.append(self._chunk(row, seen))
            row += len(item.tokens)
        groups = [self._group(members, window) for members in _alike(single, self._pages)]
        return _Plan(window, chunks, groups)

    def _seen(self, item: StepItem, window: int) -> StepItem:
        """The item as if its first visible page were the first of all."""
        first = max(0, item.start + 1 - window) // self._kv.layout.block_tokens if window else 0
        if first == 0:
            return item
        start = item.start - first * self._kv.layout.block_tokens
        return replace(item, start=start, page_table=item.page_table[first:])

    def _pages(self, item: StepItem) -> int:
        return -(-(item.start + len(item.tokens)) // self._kv.layout.block_tokens)

    def _chunk(self, row: int, item: StepItem) -> _Chunk:
        table = torch.tensor(item.page_table[: self._pages(item)])
        rows = slice(row, row + len(item.tokens))
        return _Chunk(rows, item.start, self._kv.page_strips(table).flatten())

    def _group(self, members: Sequence[tuple[int, StepItem]], window: int) -> _Group:
        width = max(self._pages(item) for _, item in members)
        tables, lengths = [], []
        for _, item in members:
            pages = item.page_table[: self._pages(item)]
            tables.append([*pages, *[pages[-1]] * (width - len(pages))])
            lengths.append(item.start + 1)
        positions = torch.arange(width * self._kv.layout.block_tokens)
        ends = torch.tensor(lengths)[:, None]
        hidden = positions >= ends
        if window:
            hidden |= positions < ends - window
        return _Group(
            rows=torch.tensor([row for row, _ in members]),
            lengths=tuple(lengths),
            strips=self._kv.page_strips(torch.tensor(tables)).flatten(),
            hidden=hidden[:, None, None],
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
        self, layer: int, window: int, chunk: _Chunk, queries: torch.Tensor, out: torch.Tensor
    ) -> None:
        keys, values = self._gather(layer, chunk.strips, 1)
        by_head = queries.transpose(0, 1).unsqueeze(0)
        for first in range(0, len(queries), _QUERY_TILE):
            last = min(len(queries), first + _QUERY_TILE)
            end = chunk.start + last
            low = max(0, chunk.start + first + 1 - window) if window else 0
            mask = self._workspace.mask(last - first, end - low, window)
            tile = self._tile(
                by_head[:, :, first:last], keys[:, :, low:end], values[:, :, low:end], mask
            )
            out[first:last] = tile[0].transpose(0, 1)

    def _tile(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """[1, head, query, head_dim] over [1, kv_head, key, head_dim]."""
        rules = self._rules
        if not rules.cap:
            return functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, scale=rules.scale, enable_gqa=True
            )
        # torch's fused attention knows no cap.
        shared = queries.view(1, keys.shape[1], -1, *queries.shape[2:])
        scores = torch.matmul(shared, keys.unsqueeze(2).transpose(-1, -2)).float() * rules.scale
        weights = (capped(scores, rules.cap) + mask).softmax(-1).to(queries.dtype)
        return torch.matmul(weights, values.unsqueeze(2)).flatten(1, 2)

    def _attend_group(self, layer: int, group: _Group, queries: torch.Tensor) -> torch.Tensor:
        layout, rules = self._kv.layout, self._rules
        keys, values = self._gather(layer, group.strips, len(group.lengths))
        for item, length in enumerate(group.lengths):
            # Stale bytes may be anything, also NaN, which a zero weight would not silence.
            values[item, :, length:] = 0
        by_head = queries.view(len(queries), layout.kv_heads, -1, layout.head_dim)
        scores = torch.matmul(by_head, keys.transpose(-1, -2)).float() * rules.scale
        scores = capped(scores, rules.cap)
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
