"""What every engine refuses before it touches a page. Knows no backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from shared.engine.batch import Draw, StepItem
from shared.errors import EngineError

MAX_LOGPROBS: Final = 20
"""Likeliest tokens that can be told of beside the drawn one."""
HISTORY_BYTES: Final = 4
"""Of one token id in a history."""


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
    return "" if item.draw is None else _draw_problem(item.draw, limits.vocab)


def _draw_problem(draw: Draw, vocab: int) -> str:
    if not 0.0 <= draw.temperature < float("inf"):
        return f"temperature {draw.temperature}"
    if not 0.0 < draw.top_p <= 1.0:
        return f"top_p {draw.top_p}"
    if draw.top_k < 0:
        return f"top_k {draw.top_k}"
    if not 0.0 <= draw.min_p <= 1.0:
        return f"min_p {draw.min_p}"
    if draw.logprobs is not None and not 0 <= draw.logprobs <= MAX_LOGPROBS:
        return f"{draw.logprobs} logprobs"
    return "" if draw.plain else _shape_problem(draw, vocab)


def _shape_problem(draw: Draw, vocab: int) -> str:
    if len(draw.bias_ids) != len(draw.biases) or not all(map(isfinite, draw.biases)):
        return "a logit bias without a token or without end"
    if not all(0 <= token < vocab for token in (*draw.bias_ids, *draw.banned)):
        return f"a biased or banned token id outside 0..{vocab - 1}"
    penalties = draw.penalties
    if penalties is None:
        return ""
    tokens, rest = divmod(len(penalties.history), HISTORY_BYTES)
    if rest or not 0 <= penalties.prompt_tokens <= tokens:
        return f"a history of {len(penalties.history)} bytes"
    strengths = (penalties.presence, penalties.frequency)
    if not 0.0 < penalties.repetition < float("inf") or not all(map(isfinite, strengths)):
        return "a penalty without end"
    return ""
