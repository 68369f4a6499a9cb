"""Measures at start what prefill and decode attention cost alone, for the rule that fuses them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

import torch

from kernels.paged_attention import launch
from kernels.paged_attention.fusing import AttentionCosts, table
from kernels.paged_attention.plan import AttentionPlan, Span, build

PREFILL_TOKENS: Final = (128, 512, 2048)
DECODE_BATCHES: Final = ((8, 512), (32, 1024), (64, 2048))
REPEATS: Final = 5

Stopwatch = Callable[[Callable[[], None]], float]


def cuda_seconds(run: Callable[[], None]) -> float:
    """Median over a few launches, by CUDA events, after one to compile."""
    run()
    taken: list[float] = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1000)
    return statistics.median(taken)


def measure_costs(
    kv: torch.Tensor,
    heads: int,
    *,
    window: int | None = None,
    cap: float = 0.0,
    prefill_tokens: Sequence[int] = PREFILL_TOKENS,
    decode_batches: Sequence[tuple[int, int]] = DECODE_BATCHES,
    stopwatch: Stopwatch = cuda_seconds,
) -> AttentionCosts:
    """Cost tables for a model's heads on the device of `kv`, one layer's view of the page memory
    [page, 2, kv_head, block_tokens, head_dim]; its pages are read, whatever they hold. Sequences
    share pages, so small memory will do; takes some tens of launches."""
    group = heads // kv.shape[2]

    def plan(spans: Sequence[Span]) -> AttentionPlan:
        return build(spans, group, kv.device, window=window)

    def seconds(made: AttentionPlan, tokens: int) -> float:
        q = torch.zeros((tokens, heads, kv.shape[4]), dtype=kv.dtype, device=kv.device)
        out = torch.empty_like(q)
        given = launch.shapes(made, q, kv, kv.shape[4] ** -0.5, upcast=False, cap=cap)
        return stopwatch(lambda: launch.serial(made, q, kv, out, given))

    prefill, decode = [], []
    for tokens in prefill_tokens:
        made = plan([Span(0, tokens, _pages(kv, tokens))])
        prefill.append((float(made.prefill_pairs), seconds(made, tokens)))
    for batch, keys in decode_batches:
        made = plan([Span(keys - 1, 1, _pages(kv, keys))] * batch)
        decode.append((float(made.decode_keys), seconds(made, batch)))
    return AttentionCosts(table(prefill), table(decode))


def _pages(kv: torch.Tensor, tokens: int) -> list[int]:
    need = -(-tokens // kv.shape[3])
    return [page % kv.shape[0] for page in range(need)]
