"""Which decode steps are recorded as graphs, and how a step is padded to one. Pure.

A graph has fixed shapes: so many items, tables of so many pages. A step takes the smallest that
holds it; the padding repeats its last item, so it writes the bytes that this item writes anyway.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shared.engine.batch import StepItem
from shared.ids import PageId

_FINE_TO: Final = 8
_STEP: Final = 8
_STEP_FROM: Final = 64
_COARSE: Final = 32
_LARGEST: Final = 256
_LEAST_CONTEXT: Final = 2_048
_WIDER: Final = 4
MOST_GRAPHS: Final = 96
"""Each holds a megabyte or so of the device, and takes a fraction of a second to record."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """One graph: `items` sequences with up to `pages` pages each."""

    pages: int
    items: int


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """All shapes of an engine, ascending in both."""

    items: tuple[int, ...]
    pages: tuple[int, ...]

    def shapes(self) -> tuple[Shape, ...]:
        """In the order in which to record: common contexts first, and the largest batch first,
        so that the smaller ones find its memory in the pool."""
        every = [Shape(pages, items) for pages in self.pages for items in reversed(self.items)]
        return tuple(every[:MOST_GRAPHS])

    def shape_of(self, items: Sequence[StepItem]) -> Shape | None:
        """The smallest shape that holds this step; None when it must run as it is: it computes a
        prompt, draws nothing somewhere, or is too large."""
        if not items or any(len(item.tokens) != 1 or item.draw is None for item in items):
            return None
        count = _at_least(self.items, len(items))
        pages = _at_least(self.pages, max(len(item.page_table) for item in items))
        return None if count is None or pages is None else Shape(pages, count)


def graph_plan(most_sequences: int, context_tokens: int, block_tokens: int) -> GraphPlan:
    """Batches 1, 2, 4, 8, then by 8 to 64 and by 32 up to `most_sequences` (at most 256); contexts
    from 2,048 tokens by factors of 4 up to the model's. No sequences: no graphs."""
    if most_sequences < 1:
        return GraphPlan((), ())
    most = min(most_sequences, _LARGEST)
    sizes = [1, 2, 4, *range(_FINE_TO, _STEP_FROM + 1, _STEP)]
    sizes += range(_STEP_FROM + _COARSE, _LARGEST + 1, _COARSE)
    items = sorted({size for size in sizes if size <= most} | {most})
    widest = -(-context_tokens // block_tokens)
    pages = [min(widest, -(-_LEAST_CONTEXT // block_tokens))]
    while pages[-1] < widest:
        pages.append(min(widest, pages[-1] * _WIDER))
    return GraphPlan(tuple(items), tuple(pages))


def padded(items: Sequence[StepItem], shape: Shape) -> list[StepItem]:
    """The step with as many items as the shape."""
    return [*items, *[items[-1]] * (shape.items - len(items))]


def widest_items(shape: Shape, block_tokens: int) -> list[StepItem]:
    """Items that use all of a shape, to size its tables and its grids. Never computed."""
    table = (PageId(0),) * shape.pages
    one = StepItem((0,), shape.pages * block_tokens - 1, table, None)
    return [one] * shape.items


def _at_least(sizes: Sequence[int], wanted: int) -> int | None:
    place = bisect_left(sizes, wanted)
    return sizes[place] if place < len(sizes) else None
