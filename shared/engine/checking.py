"""What every engine refuses before it touches a page. Knows no backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.engine.batch import Draw, StepItem
from shared.errors import EngineError


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one engine."""

    vocab: int
    context_tokens: int
    pages: int
    block_tokens: int


def check_items(items: Sequence[StepItem], limits: Limits) -> None:
    """Raise EngineError for the first item that could read or write outside its pages."""
    for index, item in enumerate(items):
        problem = _problem(item, limits)
        if problem:
            raise EngineError(f"step item {index}: {problem}")


def _problem(item: StepItem, limits: Limits) -> str:
    end = item.start + len(item.tokens)
    if not item.tokens:
        return "has no tokens"
    if item.start < 0 or end > limits.context_tokens:
        return f"positions {item.start}..{end - 1} in a context of {limits.context_tokens}"
    if len(item.page_table) * limits.block_tokens < end:
        return f"{len(item.page_table)} pages for {end} positions"
    if not 0 <= min(item.page_table) <= max(item.page_table) < limits.pages:
        return f"a page id outside 0..{limits.pages - 1}"
    if not 0 <= min(item.tokens) <= max(item.tokens) < limits.vocab:
        return f"a token id outside 0..{limits.vocab - 1}"
    return "" if item.draw is None else _draw_problem(item.draw)


def _draw_problem(draw: Draw) -> str:
    if not 0.0 <= draw.temperature < float("inf"):
        return f"temperature {draw.temperature}"
    return "" if 0.0 < draw.top_p <= 1.0 else f"top_p {draw.top_p}"
