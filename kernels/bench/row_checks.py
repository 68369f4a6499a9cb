"""Checks and times all kernels but attention, each against its reference on fresh data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
import torch.nn.functional as functional

from kernels import dispatch
from kernels.activation import reference as gate
from kernels.bench.results import ERROR_LIMITS, Bench, Timing
from kernels.kv_codec import reference as codec
from kernels.kv_pages import reference as pages
from kernels.norm import reference as norm
from kernels.rope import reference as rope
from kernels.sampling import reference as sampling

DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
BLOCK_TOKENS: Final = 16


def check(bench: Bench) -> None:
    """Every kernel in every dtype, odd sizes."""
    for number, dtype in enumerate(DTYPES):
        head_dim = (64, 96, 128)[number]
        _check_rows(bench, dtype)
        _check_pages(bench, dtype, head_dim)
        _check_rope(bench, dtype, head_dim)
        _check_codec(bench, dtype, head_dim)
    _check_sampling(bench)


def _check_rows(bench: Bench, dtype: torch.dtype) -> None:
    width, count = (200, 3) if bench.dry else (5000, 513)
    case, limit = f"{count} x {width} {str(dtype)[6:]}", ERROR_LIMITS[dtype]
    x, residual = bench.random(2, count, width, dtype=dtype)
    weight = bench.random(width, dtype=dtype)
    want, _ = norm.add_rms_norm(x, residual, weight, 1e-5)
    got = dispatch.rms_norm(x, weight, 1e-5)
    bench.compare("rms_norm", case, got, norm.rms_norm(x, weight, 1e-5), limit)
    bench.compare(
        "add_rms_norm", case, dispatch.add_rms_norm(x, residual, weight, 1e-5), want, limit
    )
    bench.compare("silu_mul", case, dispatch.silu_mul(x), gate.silu_mul(x), limit)


def _check_pages(bench: Bench, dtype: torch.dtype, head_dim: int) -> None:
    memory = bench.random(9, 2, 2, 4, BLOCK_TOKENS, head_dim, dtype=dtype)
    ids, case = bench.ints([7, 0, 4]), f"{head_dim} {str(dtype)[6:]}"
    for to in (dtype, torch.float32):
        out = dispatch.gather_pages(memory, ids, first_head=1, heads=2, dtype=to)
        bench.compare("gather_pages", case, out, pages.gather(memory, ids, 1, 2, to), 0.0)
    staged = bench.random(3, 2, 2, 3, BLOCK_TOKENS, head_dim)
    want = pages.scatter(staged, memory, ids, 1)
    dispatch.scatter_pages(staged, memory, ids, first_head=1)
    # The interpreter truncates on the way to bfloat16, and so may differ in the last place.
    limit = ERROR_LIMITS[dtype] if bench.dry else 0.0
    bench.compare("scatter_pages", case, memory, want, limit)


def _check_rope(bench: Bench, dtype: torch.dtype, head_dim: int) -> None:
    tokens, heads, kv_heads = 5 if bench.dry else 300, 6, 2
    case, limit = f"{head_dim} {str(dtype)[6:]}", ERROR_LIMITS[dtype]
    steps = torch.arange(0, head_dim, 2, device=bench.device) / head_dim
    theta = 10000.0**-steps
    memory = torch.zeros(
        (-(-tokens // BLOCK_TOKENS), 2, 2, kv_heads, BLOCK_TOKENS, head_dim), device=bench.device
    ).to(dtype)
    positions = torch.arange(tokens, device=bench.device) * 400
    cosines, sines = (turn.float() for turn in rope.turns(positions, theta))
    mixed = bench.random(tokens, heads + 2 * kv_heads, head_dim, dtype=dtype)
    want = rope.rotate(mixed, cosines, sines)
    values = mixed[:, -kv_heads:].clone()
    slots = bench.ints(bench.chance.sample(range(len(memory) * BLOCK_TOKENS), tokens))
    queries = dispatch.rope_write(mixed, cosines, sines, slots, memory[:, 1])
    bench.compare("rope_write", f"queries {case}", queries, want[:, :heads], limit)
    written = memory[:, 1].transpose(2, 3).transpose(1, 2).flatten(0, 1)[slots.long()]
    bench.compare("rope_write", f"keys {case}", written[:, 0], want[:, heads:-kv_heads], limit)
    bench.compare("rope_write", f"values {case}", written[:, 1], values, 0.0)
    ids = torch.arange(len(memory), device=bench.device).int()
    offsets = torch.full((len(memory),), 777, device=bench.device)
    dispatch.reposition_keys(memory, ids, torch.full_like(ids, BLOCK_TOKENS), offsets, theta)
    moved = memory[:, 1].transpose(2, 3).transpose(1, 2).flatten(0, 1)[slots.long()]
    want = rope.rotate(written[:, 0], *rope.turns(offsets[:1].expand(tokens), theta))
    bench.compare("reposition_keys", case, moved[:, 0], want, limit)


def _check_codec(bench: Bench, dtype: torch.dtype, head_dim: int) -> None:
    tokens = 23 if bench.dry else 95
    memory = bench.random(6, 1, 2, 2, BLOCK_TOKENS, head_dim, dtype=dtype)
    table, bins = bench.ints([5, 2, 0, 3, 1, 4]), bench.ints([32, 16])
    symbols, scales = dispatch.encode_pages(memory, table, tokens, bins)
    out = torch.zeros_like(memory, dtype=torch.float32)
    dispatch.decode_pages(symbols, scales, bins, out, table)
    rows, back = (
        x[table.long()].permute(1, 2, 0, 4, 3, 5).flatten(2, 3).flatten(3)[0, :, :tokens].cpu()
        for x in (memory, out)
    )
    for half, count in enumerate((32, 16)):
        case = f"{count} bins {head_dim} {str(dtype)[6:]}"
        want, want_scales = codec.encode(rows[half].float(), count, 10)
        bench.compare("encode_pages", case, symbols[half].cpu(), want, 0.0)
        decoded = codec.decode(want, want_scales, count, 10)
        bench.compare("decode_pages", case, back[half], decoded, 0.0)


def _check_sampling(bench: Bench) -> None:
    rows, vocab = (4, 300) if bench.dry else (64, 50_257)
    logits = bench.random(rows, vocab) * 3
    rules = [(1.0, 0, 1.0, 0.0), (0.8, 50, 0.9, 0.0), (1.2, 0, 0.95, 0.01), (0.6, 7, 1.0, 0.2)]
    given = [rules[row % len(rules)] for row in range(rows)]
    uniforms = torch.rand(rows, device=bench.device)
    got = _sample(bench, logits, given, uniforms)
    missed = 0.0
    for row, (token, rule) in enumerate(zip(got.tolist(), given, strict=True)):
        weights = sampling.kept(logits[row].cpu(), *rule)
        bounds = (weights.cumsum(0) / weights.sum()).tolist()
        low, aim = bounds[token] - float(weights[token] / weights.sum()), float(uniforms[row])
        missed = max(missed, low - aim, aim - bounds[token], float(weights[token] == 0))
    error = torch.tensor([missed])
    bench.compare("sample_tokens", f"{rows} x {vocab}", error, torch.zeros(1), 1e-5)


def _sample(
    bench: Bench,
    logits: torch.Tensor,
    rules: list[tuple[float, int, float, float]],
    uniforms: torch.Tensor,
) -> torch.Tensor:
    heat, top_k, top_p, min_p = zip(*rules, strict=True)
    floats = (torch.tensor(x, device=bench.device) for x in (heat, top_p, min_p))
    temperatures, top_ps, min_ps = floats
    return dispatch.sample_tokens(logits, temperatures, bench.ints(top_k), top_ps, min_ps, uniforms)


def time(bench: Bench) -> None:
    """Bytes moved against the copy ceiling, beside the plain torch way."""
    rows, width = (4, 256) if bench.dry else (8192, 4096)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    size = torch.finfo(dtype).bits // 8
    x = bench.random(rows, width, dtype=dtype)
    weight, shape = bench.random(width, dtype=dtype), f"{rows} x {width}"
    _add(
        bench,
        Timing("rms_norm", shape, 0, 2 * rows * width * size, rival="torch rms_norm"),
        lambda: dispatch.rms_norm(x, weight, 1e-5),
        lambda: functional.rms_norm(x, (width,), weight, 1e-5),
    )
    half = width // 2
    _add(
        bench,
        Timing("silu_mul", shape, 0, 3 * rows * half * size, rival="torch silu * up"),
        lambda: dispatch.silu_mul(x),
        lambda: functional.silu(x[:, :half]) * x[:, half:],
    )
    count = 4 if bench.dry else 1024
    memory = bench.random(count, 2 if bench.dry else 16, 2, 4, BLOCK_TOKENS, 64, dtype=dtype)
    ids = torch.randperm(count, device=bench.device).int()
    _add(
        bench,
        Timing("gather_pages", f"{count} pages", 0, 2 * memory.numel() * size, rival="torch index"),
        lambda: dispatch.gather_pages(memory, ids),
        lambda: memory[ids],
    )
    bins = bench.ints([32] * memory.shape[1] * 2)
    tokens = count * BLOCK_TOKENS
    _add(
        bench,
        Timing("encode_pages", f"{tokens} tokens", 0, memory.numel() * (size + 1)),
        lambda: dispatch.encode_pages(memory, ids, tokens, bins),
    )
    batch, vocab = (2, 300) if bench.dry else (64, 128_256)
    logits, uniforms = bench.random(batch, vocab), torch.rand(batch, device=bench.device)
    _add(
        bench,
        Timing("sample_tokens", f"{batch} x {vocab}", 0, 4 * batch * vocab, rival="torch sort"),
        lambda: _sample(bench, logits, [(0.8, 50, 0.9, 0.0)] * batch, uniforms),
        lambda: logits.sort(-1, descending=True),
    )


def _add(
    bench: Bench,
    timing: Timing,
    run: Callable[[], object],
    rival: Callable[[], object] | None = None,
) -> None:
    """Fill in the seconds of a kernel and of its rival."""
    seconds = bench.seconds(run)
    other = bench.seconds(rival) if rival is not None else 0.0
    bench.timings.append(replace(timing, seconds=seconds, rival_seconds=other))
