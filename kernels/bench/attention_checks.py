"""Checks and times attention: decode, prefill, window, and the fused launch, on fresh data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from kernels import dispatch
from kernels.bench.results import ERROR_LIMITS, Bench, Timing
from kernels.paged_attention import reference
from kernels.paged_attention.measure import measure_costs
from kernels.paged_attention.plan import AttentionPlan, Span, build
from kernels.paged_attention.scratch import FusedScratch, for_device

BLOCK_TOKENS: Final = 16
SHAPES: Final = (
    (1, 64, torch.float32),
    (2, 96, torch.float16),
    (4, 128, torch.bfloat16),
    (8, 64, torch.bfloat16),
    (3, 128, torch.float16),
    (7, 96, torch.float32),
    (5, 64, torch.float16),
    (6, 96, torch.bfloat16),
    (8, 128, torch.float32),
    (2, 256, torch.bfloat16),
    (4, 256, torch.float16),
)
CAP: Final = 1.5
"""Near the scores themselves, which it bends."""
LAUNCHES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Step:
    """Fresh queries over fresh pages, every position that nobody may read a NaN."""

    items: Sequence[Span]
    plan: AttentionPlan
    q: torch.Tensor
    kv: torch.Tensor
    cap: float = 0.0

    def expected(self) -> torch.Tensor:
        """In float64."""
        parts, row = [], 0
        for item in self.items:
            q = self.q[row : row + item.count].double()
            table = torch.tensor(item.pages, device=self.q.device)
            scale = self.q.shape[2] ** -0.5
            window = self.plan.window
            given = (q, self.kv, table, item.start, scale, window, self.cap)
            parts.append(reference.attend(*given))
            row += item.count
        return torch.cat(parts)

    def run(self, fusing: dispatch.Fusing | None = None, *, upcast: bool = False) -> torch.Tensor:
        """Through the door that the engine takes."""
        scale = self.q.shape[2] ** -0.5
        return dispatch.paged_attention(
            self.plan, self.q, self.kv, scale, cap=self.cap, upcast=upcast, fusing=fusing
        )


def make(
    bench: Bench,
    lengths: Sequence[tuple[int, int]],
    shape: tuple[int, int, torch.dtype],
    *,
    kv_heads: int = 2,
    window: int | None = None,
    cap: float = 0.0,
) -> Step:
    """(start, count) items over shuffled pages."""
    group, head_dim, dtype = shape
    need = [-(-(start + count) // BLOCK_TOKENS) for start, count in lengths]
    free = list(range(sum(need) + 1))
    bench.chance.shuffle(free)
    items = [
        Span(*length, [free.pop() for _ in range(count)])
        for length, count in zip(lengths, need, strict=True)
    ]
    kv = bench.random(sum(need) + 1, 2, 2, kv_heads, BLOCK_TOKENS, head_dim, dtype=dtype)[:, 1]
    kv[free.pop()] = float("nan")
    for item in items:
        used = (item.start + item.count) % BLOCK_TOKENS
        if used:
            kv[item.pages[-1], :, :, used:] = float("nan")
    rows = sum(count for _, count in lengths)
    q = bench.random(rows, group * kv_heads, head_dim, dtype=dtype)
    return Step(items, build(items, group, bench.device, window=window), q, kv, cap)


def check(bench: Bench) -> None:
    """Serial and fused launches of every shape against float64."""
    scratch = FusedScratch(bench.device, sms=2) if bench.dry else for_device(bench.device)
    fusing = dispatch.Fusing(scratch, choice="always")
    lengths = [(40, 1), (0, 21), (16, 16), (70, 1), (0, 1)]
    if not bench.dry:
        lengths += [(1500, 1), (1000, 300), (511, 1), (512, 1), (0, 777), (63, 65)]
    for number, shape in enumerate(SHAPES[:3] if bench.dry else SHAPES):
        window = 24 if number % 3 == 2 else None
        cap = CAP if number % 2 == 1 else 0.0
        case = f"x{shape[0]} {shape[1]} {str(shape[2])[6:]}"
        case += f"{' windowed' if window else ''}{' capped' if cap else ''}"
        if not bench.has_time(case):
            continue
        step = make(bench, lengths, shape, window=window, cap=cap)
        limit = ERROR_LIMITS[shape[2]]
        want = step.expected()
        serial = step.run(upcast=bench.dry)
        bench.compare("paged_attention", case, serial, want, limit)
        fused = step.run(fusing, upcast=bench.dry)
        bench.compare("pod_step", case, fused, want, limit)
        bench.compare("pod_step leaves", case, _flag(not scratch.idle()), _flag(False), 0.0)
    _check_tickets(bench, scratch)


def _check_tickets(bench: Bench, scratch: FusedScratch) -> None:
    """Many launches, the same bits each time, no ticket left behind."""
    count = 5 if bench.dry else LAUNCHES
    step = make(bench, [(33, 1), (0, 5)], (2, 64, torch.float32 if bench.dry else torch.float16))
    fusing = dispatch.Fusing(scratch, choice="always")
    first = step.run(fusing)
    changed = torch.zeros((), dtype=torch.int64, device=bench.device)
    for _ in range(count):
        changed += (step.run(fusing) != first).any()
    bench.compare("pod_step repeats", f"{count} launches", changed[None], _flag(False), 0.0)
    bench.compare(
        "pod_step leaves", f"{count} launches", _flag(not scratch.idle()), _flag(False), 0.0
    )


def _flag(value: bool) -> torch.Tensor:
    return torch.tensor([float(value)])


def time(bench: Bench) -> None:
    """Decode against the memory roof, prefill against the matrix roof, both beside SDPA."""
    shape = (4, 64, torch.float32) if bench.dry else (4, 128, torch.bfloat16)
    kv_heads, head_dim = (1, 64) if bench.dry else (8, 128)
    heads, width = 4 * kv_heads, torch.finfo(shape[2]).bits // 8
    for batch, keys in ((2, 33),) if bench.dry else ((1, 32768), (32, 4096), (128, 1024)):
        step = make(bench, [(keys - 1, 1)] * batch, shape, kv_heads=kv_heads)
        q = bench.random(batch, heads, 1, head_dim, dtype=shape[2])
        k, v = bench.random(2, batch, kv_heads, keys, head_dim, dtype=shape[2])
        rival = bench.seconds(partial(_sdpa, q, k, v, causal=False))
        moved = 2 * batch * keys * kv_heads * head_dim * width
        taken = bench.seconds(step.run)
        flops = 4 * batch * keys * heads * head_dim
        bench.timings.append(
            Timing("decode", f"{batch} x {keys}", taken, moved, flops, "sdpa", rival)
        )
    for tokens in (21,) if bench.dry else (2048, 8192):
        step = make(bench, [(0, tokens)], shape, kv_heads=kv_heads)
        q = bench.random(1, heads, tokens, head_dim, dtype=shape[2])
        k, v = bench.random(2, 1, kv_heads, tokens, head_dim, dtype=shape[2])
        rival = bench.seconds(partial(_sdpa, q, k, v, causal=True))
        flops = 4 * step.plan.prefill_pairs * heads * head_dim
        moved = (2 * heads + 2 * kv_heads) * tokens * head_dim * width
        taken = bench.seconds(step.run)
        bench.timings.append(Timing("prefill", f"{tokens}", taken, moved, flops, "sdpa", rival))
    _time_fused(bench, shape, kv_heads)


def _time_fused(bench: Bench, shape: tuple[int, int, torch.dtype], kv_heads: int) -> None:
    """One launch against two, over shares of prefill; and whether the rule would have fused."""
    group, head_dim, dtype = shape
    scratch = FusedScratch(bench.device, sms=2) if bench.dry else for_device(bench.device)
    memory = make(bench, [(64, 1)] * 16, shape, kv_heads=kv_heads).kv.nan_to_num()
    sizes = (
        ((4, 8), ((1, 16), (2, 16))) if bench.dry else ((128, 512, 2048), ((8, 512), (64, 2048)))
    )
    costs = measure_costs(
        memory,
        group * kv_heads,
        prefill_tokens=sizes[0],
        decode_batches=sizes[1],
        stopwatch=bench.seconds,
    )
    mixes = [(8, 2, 17)] if bench.dry else [(512, 32, 2048), (1024, 64, 4096), (2048, 16, 8192)]
    for chunk, batch, keys in mixes:
        lengths = [(keys, chunk), *[(keys - 1, 1)] * batch]
        step = make(bench, lengths, shape, kv_heads=kv_heads)
        fused = bench.seconds(partial(step.run, dispatch.Fusing(scratch, choice="always")))
        serial = bench.seconds(step.run)
        width = torch.finfo(dtype).bits // 8
        read = step.plan.decode_keys + keys + chunk
        flops = 4 * (step.plan.prefill_pairs + step.plan.decode_keys) * group * kv_heads * head_dim
        chosen = "fused" if costs.fusing_pays(step.plan) else "serial"
        case = f"{chunk} at {keys} + {batch} x {keys}, rule says {chosen}"
        moved = 2 * read * kv_heads * head_dim * width
        bench.timings.append(Timing("pod", case, fused, moved, flops, "two launches", serial))


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=True
    )
