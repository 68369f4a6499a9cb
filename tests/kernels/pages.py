"""Page memory, sequences over shuffled pages, and the judge's answer, for the attention tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import dispatch
from kernels.paged_attention import plan, reference

BLOCK_TOKENS = 16
PAGES = 48


@dataclass(frozen=True, slots=True)
class Shape:
    """Query heads per kv head, kv heads, head size, dtype, window, bound of the scores."""

    group: int = 3
    kv_heads: int = 2
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    window: int | None = None
    cap: float = 0.0

    @property
    def tolerance(self) -> float:
        return {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[self.dtype]


@dataclass(frozen=True, slots=True)
class Step:
    """What a launch gets: items, their plan, queries, one layer's view of the pages."""

    items: Sequence[plan.Span]
    tables: plan.AttentionPlan
    q: torch.Tensor
    kv: torch.Tensor
    scale: float
    cap: float

    def expected(self) -> torch.Tensor:
        """Computed in float64."""
        parts, row = [], 0
        for item in self.items:
            q = self.q[row : row + item.count].double()
            rules = (item.start, self.scale, self.tables.window, self.cap)
            parts.append(reference.attend(q, self.kv, torch.tensor(item.pages), *rules))
            row += item.count
        return torch.cat(parts).float()

    def run(self, fusing: dispatch.Fusing | None = None) -> torch.Tensor:
        """Through the door that the engine takes."""
        return dispatch.paged_attention(
            self.tables, self.q, self.kv, self.scale, cap=self.cap, upcast=True, fusing=fusing
        )


def step(
    lengths: Sequence[tuple[int, int]], shape: Shape, *, seed: int = 1, span_tokens: int = 512
) -> Step:
    """(start, count) items; every position that no item may read is NaN."""
    generator = torch.Generator().manual_seed(seed)
    cells = (PAGES, 2, 2, shape.kv_heads, BLOCK_TOKENS, shape.head_dim)
    kv = torch.randn(cells, generator=generator).to(shape.dtype)
    items = spans(lengths, seed)
    poison(kv, items)
    rows = sum(item.count for item in items)
    heads = shape.group * shape.kv_heads
    q = torch.randn((rows, heads, shape.head_dim), generator=generator).to(shape.dtype)
    tables = plan.build(items, shape.group, q.device, window=shape.window, span_tokens=span_tokens)
    return Step(items, tables, q, kv[:, 1], shape.head_dim**-0.5, shape.cap)


def spans(lengths: Sequence[tuple[int, int]], seed: int) -> list[plan.Span]:
    free = list(range(1, PAGES))
    random.Random(seed).shuffle(free)
    made = []
    for start, count in lengths:
        need = -(-(start + count) // BLOCK_TOKENS)
        made.append(plan.Span(start, count, [free.pop() for _ in range(need)]))
    return made


def poison(kv: torch.Tensor, items: Sequence[plan.Span]) -> None:
    for page in set(range(1, PAGES)) - {page for item in items for page in item.pages}:
        kv[page] = float("nan")
    for item in items:
        used = (item.start + item.count) % BLOCK_TOKENS
        if used:
            kv[item.pages[-1], :, :, :, used:] = float("nan")
