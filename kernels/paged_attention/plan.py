"""Which program does what: the tables of one step, built once on the CPU for all its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

DECODE_SPAN_TOKENS: Final = 512
PREFILL_ROWS: Final = 64


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Items with one query. All tensors are int32 on the device."""

    rows: torch.Tensor
    """[items] row of each item's query in the step's token matrix (int64, for indexing)."""
    lengths: torch.Tensor
    """[items] positions to attend to, the query's own included."""
    tables: torch.Tensor
    """[items, max_pages]"""
    splits: int


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """Items with several queries, cut into tiles."""

    tables: torch.Tensor
    tile_items: torch.Tensor
    tile_firsts: torch.Tensor
    item_rows: torch.Tensor
    item_starts: torch.Tensor
    item_counts: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Both halves of a mixed step; None where a step has no such item."""

    decode: DecodePlan | None
    prefill: PrefillPlan | None


@dataclass(frozen=True, slots=True)
class Span:
    """One item of a step: `count` queries from position `start`, over `pages`."""

    start: int
    count: int
    pages: Sequence[int]


def build(spans: Sequence[Span], group: int, device: torch.device) -> AttentionPlan:
    """Tables for a step whose token matrix holds the spans one after the other. `group` is the
    number of query heads per kv head. Raises ValueError for a span without room or queries."""
    decode: list[tuple[int, Span]] = []
    prefill: list[tuple[int, Span]] = []
    row = 0
    for span in spans:
        if span.count < 1 or span.start < 0 or not span.pages:
            raise ValueError("a span needs a query and a page")
        (decode if span.count == 1 else prefill).append((row, span))
        row += span.count
    return AttentionPlan(
        decode=_decode(decode, device) if decode else None,
        prefill=_prefill(prefill, group, device) if prefill else None,
    )


def _decode(items: Sequence[tuple[int, Span]], device: torch.device) -> DecodePlan:
    lengths = [span.start + 1 for _, span in items]
    return DecodePlan(
        rows=torch.tensor([row for row, _ in items], device=device),
        lengths=_ints(lengths, device),
        tables=_tables([span for _, span in items], device),
        splits=-(-max(lengths) // DECODE_SPAN_TOKENS),
    )


def _prefill(items: Sequence[tuple[int, Span]], group: int, device: torch.device) -> PrefillPlan:
    per_tile = max(1, PREFILL_ROWS // group)
    tiles = [
        (number, first)
        for number, (_, span) in enumerate(items)
        for first in range(0, span.count, per_tile)
    ]
    return PrefillPlan(
        tables=_tables([span for _, span in items], device),
        tile_items=_ints([number for number, _ in tiles], device),
        tile_firsts=_ints([first for _, first in tiles], device),
        item_rows=_ints([row for row, _ in items], device),
        item_starts=_ints([span.start for _, span in items], device),
        item_counts=_ints([span.count for _, span in items], device),
    )


def _tables(spans: Sequence[Span], device: torch.device) -> torch.Tensor:
    width = max(len(span.pages) for span in spans)
    return _ints([[*span.pages, *[0] * (width - len(span.pages))] for span in spans], device)


def _ints(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
