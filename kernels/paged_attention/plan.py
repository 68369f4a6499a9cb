"""Which program does what: the tables of one step, built once on the CPU for all its layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

import torch

DECODE_SPAN_TOKENS: Final = 512
PREFILL_ROWS: Final = 64


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Items with one query. All tensors are int32 on the device."""

    rows: torch.Tensor
    """[items] row of each item's query in the step's token matrix."""
    lengths: torch.Tensor
    """[items] positions so far, the query's own included."""
    tables: torch.Tensor
    """[items, max_pages]"""
    splits: int
    """Spans of keys that the item which sees most needs."""
    span_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """Items with several queries, cut into tiles; the tile with most keys first."""

    tables: torch.Tensor
    tile_items: torch.Tensor
    tile_firsts: torch.Tensor
    item_rows: torch.Tensor
    item_starts: torch.Tensor
    item_counts: torch.Tensor


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """The decode items of a fused launch: one entry per split that holds keys."""

    items: torch.Tensor
    splits: torch.Tensor
    """[entries] which split of its item."""
    split_counts: torch.Tensor
    """[entries] how many splits its item has."""
    firsts: torch.Tensor
    """[entries] first entry of its item."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Both halves of a mixed step; None where a step has no such item."""

    decode: DecodePlan | None
    prefill: PrefillPlan | None
    entries: EntryPlan | None = None
    """Only where both halves are there."""
    window: int | None = None
    """Positions that a query sees, its own included; None is all earlier ones."""
    prefill_pairs: int = 0
    """(query, key) pairs of the prefill half, for one head."""
    decode_keys: int = 0
    """Keys that the decode half reads, for one kv head."""


@dataclass(frozen=True, slots=True)
class Span:
    """One item of a step: `count` queries from position `start`, over `pages`."""

    start: int
    count: int
    pages: Sequence[int]


class _Words:
    """Collects lists of integers, so that all tables go to the device in one copy."""

    def __init__(self) -> None:
        self._flat: list[int] = []

    def add(self, values: Sequence[int]) -> tuple[int, int]:
        place = (len(self._flat), len(values))
        self._flat += values
        # Tables start on 16 bytes, like tensors of their own would.
        self._flat += [0] * (-len(self._flat) % 4)
        return place

    def on(self, device: torch.device) -> _Placed:
        return _Placed(torch.tensor(self._flat, dtype=torch.int32).to(device))


@dataclass(frozen=True, slots=True)
class _Placed:
    words: torch.Tensor

    def at(self, place: tuple[int, int]) -> torch.Tensor:
        return self.words[place[0] : place[0] + place[1]]


def build(
    spans: Sequence[Span],
    group: int,
    device: torch.device,
    *,
    window: int | None = None,
    span_tokens: int = DECODE_SPAN_TOKENS,
) -> AttentionPlan:
    """Tables for a step whose token matrix holds the spans one after the other. `group` is the
    number of query heads per kv head. Raises ValueError for a span without room or queries, and
    for a window that sees nothing."""
    return build_each(spans, group, device, [window], span_tokens=span_tokens)[window]


def build_each(
    spans: Sequence[Span],
    group: int,
    device: torch.device,
    windows: Collection[int | None],
    *,
    span_tokens: int = DECODE_SPAN_TOKENS,
) -> dict[int | None, AttentionPlan]:
    """As `build`, one plan a window for layers that differ in it. They share every tensor that does
    not depend on the window, so what is written into one's tables stands in all."""
    if any(window is not None and window < 1 for window in windows):
        raise ValueError("a window holds at least the query's own position")
    decode: list[tuple[int, Span]] = []
    prefill: list[tuple[int, Span]] = []
    row = 0
    for span in spans:
        if span.count < 1 or span.start < 0 or not span.pages:
            raise ValueError("a span needs a query and a page")
        (decode if span.count == 1 else prefill).append((row, span))
        row += span.count
    whole = _decode(decode, span_tokens, device) if decode else None
    tiles = _prefill(prefill, group, device) if prefill else None
    plans = {}
    for window in windows:
        seen = [min(span.start + 1, window or span.start + 1) for _, span in decode]
        splits = -(-max(seen, default=0) // span_tokens)
        plans[window] = AttentionPlan(
            decode=replace(whole, splits=splits) if whole else None,
            prefill=tiles,
            entries=_entries(seen, span_tokens, device) if decode and prefill else None,
            window=window,
            prefill_pairs=sum(_pairs(span, window) for _, span in prefill),
            decode_keys=sum(seen),
        )
    return plans


def _pairs(span: Span, window: int | None) -> int:
    """Keys seen by all queries of a span together."""

    def upto(queries: int) -> int:
        growing = queries if window is None else min(queries, window)
        return growing * (growing + 1) // 2 + (queries - growing) * (window or 0)

    return upto(span.start + span.count) - upto(span.start)


def _decode(
    items: Sequence[tuple[int, Span]], span_tokens: int, device: torch.device
) -> DecodePlan:
    words = _Words()
    rows = words.add([row for row, _ in items])
    lengths = words.add([span.start + 1 for _, span in items])
    tables = words.add(_tables([span for _, span in items]))
    placed = words.on(device)
    return DecodePlan(
        rows=placed.at(rows),
        lengths=placed.at(lengths),
        tables=placed.at(tables).view(len(items), -1),
        splits=-(-max(span.start + 1 for _, span in items) // span_tokens),
        span_tokens=span_tokens,
    )


def _prefill(items: Sequence[tuple[int, Span]], group: int, device: torch.device) -> PrefillPlan:
    per_tile = max(1, PREFILL_ROWS // group)
    tiles = [
        (number, first)
        for number, (_, span) in enumerate(items)
        for first in range(0, span.count, per_tile)
    ]
    tiles.sort(key=lambda tile: items[tile[0]][1].start + tile[1], reverse=True)
    words = _Words()
    places = [
        words.add(values)
        for values in (
            _tables([span for _, span in items]),
            [number for number, _ in tiles],
            [first for _, first in tiles],
            [row for row, _ in items],
            [span.start for _, span in items],
            [span.count for _, span in items],
        )
    ]
    placed = words.on(device)
    tables, *rest = (placed.at(place) for place in places)
    return PrefillPlan(tables.view(len(items), -1), *rest)


def _entries(seen: Sequence[int], span_tokens: int, device: torch.device) -> EntryPlan:
    counts = [-(-keys // span_tokens) for keys in seen]
    firsts = [0, *accumulate(counts)]
    entries = [(item, split) for item, count in enumerate(counts) for split in range(count)]
    words = _Words()
    places = [
        words.add(values)
        for values in (
            [item for item, _ in entries],
            [split for _, split in entries],
            [counts[item] for item, _ in entries],
            [firsts[item] for item, _ in entries],
        )
    ]
    placed = words.on(device)
    return EntryPlan(*(placed.at(place) for place in places))


def _tables(spans: Sequence[Span]) -> list[int]:
    width = max(len(span.pages) for span in spans)
    return [page for span in spans for page in (*span.pages, *[0] * (width - len(span.pages)))]
