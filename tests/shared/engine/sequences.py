"""Drives an Engine the way workers do: chunked prefill, then one token after another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.engine.batch import Draw, Engine, StepItem
from shared.ids import PageId

BLOCK = 16


@dataclass(frozen=True)
class Sampling:
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def draw(self, position: int) -> Draw:
        return Draw(self.temperature, self.top_p, self.seed, position)


def table(*pages: int) -> tuple[PageId, ...]:
    return tuple(PageId(page) for page in pages)


def scattered(pages: int, count: int, seed: int = 0) -> tuple[PageId, ...]:
    """`count` distinct pages in no order."""
    return table(*random.Random(seed).sample(range(pages), count))


def pages_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


def chunks(total: int, seed: int | None = None, start: int = 0) -> Iterator[tuple[int, int]]:
    """(start, end) pieces: one, or random ones as prefill makes them (block borders or not)."""
    chance = random.Random(seed)
    while start < total:
        end = total if seed is None else min(total, start + chance.randint(1, 200))
        yield start, end
        start = end


def prefill(
    engine: Engine,
    prompt: Sequence[int],
    pages: tuple[PageId, ...],
    sampling: Sampling | None = None,
    seed: int | None = None,
    start: int = 0,
) -> int:
    """Compute the prompt from `start` in chunks and draw the first token."""
    token: int | None = None
    for first, end in chunks(len(prompt), seed, start):
        draw = (sampling or Sampling()).draw(0) if end == len(prompt) else None
        item = StepItem(tuple(prompt[first:end]), first, pages, draw)
        (token,) = engine.step([item]).tokens
    assert token is not None
    return token


def decode(
    engine: Engine,
    prompt_tokens: int,
    first: int,
    pages: tuple[PageId, ...],
    count: int,
    sampling: Sampling | None = None,
    stop: int | None = None,
) -> list[int]:
    """`count` tokens in all, the given first one included; ends early after `stop`."""
    tokens = [first]
    while len(tokens) < count and tokens[-1] != stop:
        draw = (sampling or Sampling()).draw(len(tokens))
        item = StepItem((tokens[-1],), prompt_tokens + len(tokens) - 1, pages, draw)
        (token,) = engine.step([item]).tokens
        assert token is not None
        tokens.append(token)
    return tokens


def copy_pages(
    source: Engine, target: Engine, pairs: Sequence[tuple[PageId, PageId]], page_bytes: int
) -> None:
    """What the data plane does: bytes of whole pages, nothing else."""
    for read, written in pairs:
        target.memory.run(written, 1)[:] = source.memory.run(read, 1)[:page_bytes]
