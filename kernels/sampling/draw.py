"""Top-k, top-p and min-p sampling of a row of logits by one program, without a sort.

A token stays by its logit alone (and its id among equal ones), so each rule is a threshold: found
by search over the order-preserving integer form of float32, four-fold a pass, exact to the bit.

    logits  ---- top_k ----> threshold by count ---- min_p, top_p ----> threshold by mass ----> draw
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

TILE: Final = 2048
WARPS: Final = 8
INVALID: Final = -1
"""Drawn where a row holds no number to draw from."""


@triton.jit
def load_keys(row_ptr, at, vocab):
    """(value, integer key of the same order). Past the end: minus infinity, the lowest key."""
    x = tl.load(row_ptr + at, mask=at < vocab, other=float("-inf")).to(tl.float32) + 0.0
    bits = x.to(tl.int32, bitcast=True)
    return x, bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def weigh(x, peak, heat, min_p, BY_MASS: tl.constexpr):
    """What a token adds to a measure: its unnormalised probability if min_p leaves it, or one."""
    if BY_MASS:
        weight = tl.exp((x - peak) * heat)
        weight = tl.where(weight >= min_p, weight, 0.0)
    else:
        weight = tl.full(x.shape, 1.0, tl.float32)
    return weight


@triton.jit
def measure(row_ptr, vocab, peak, heat, min_p, key, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """Measure of the tokens above `key`, and number of those at it."""
    above = tl.full([], 0.0, tl.float32)
    equal = tl.full([], 0, tl.int32)
    for first in range(0, vocab, TILE):
        at = first + tl.arange(0, TILE)
        x, keys = load_keys(row_ptr, at, vocab)
        weight = weigh(x, peak, heat, min_p, BY_MASS)
        above += tl.sum(tl.where((keys > key) & (at < vocab), weight, 0.0), 0)
        equal += tl.sum(((keys == key) & (at < vocab)).to(tl.int32), 0)
    return above, equal


@triton.jit
def search(
    row_ptr, vocab, peak, heat, min_p, low, high, need, BY_MASS: tl.constexpr, TILE: tl.constexpr
):
    """Highest key whose tokens at or above it measure `need` or more, from [low, high); int64.
    `low` is known to, `high` known not to. Sums of fewer terms are never larger, so it is exact."""
    while high - low > 1:
        step = tl.maximum((high - low) // 4, 1)
        one = low + step
        two = tl.minimum(one + step, high - 1)
        three = tl.minimum(two + step, high - 1)
        at_one = tl.full([], 0.0, tl.float32)
        at_two = tl.full([], 0.0, tl.float32)
        at_three = tl.full([], 0.0, tl.float32)
        for first in range(0, vocab, TILE):
            at = first + tl.arange(0, TILE)
            x, keys = load_keys(row_ptr, at, vocab)
            wide = keys.to(tl.int64)
            weight = tl.where(at < vocab, weigh(x, peak, heat, min_p, BY_MASS), 0.0)
            at_one += tl.sum(tl.where(wide >= one, weight, 0.0), 0)
            at_two += tl.sum(tl.where(wide >= two, weight, 0.0), 0)
            at_three += tl.sum(tl.where(wide >= three, weight, 0.0), 0)
        high = tl.where(at_three < need, three, high)
        high = tl.where(at_two < need, two, high)
        high = tl.where(at_one < need, one, high)
        low = tl.where(at_one >= need, one, low)
        low = tl.where(at_two >= need, two, low)
        low = tl.where(at_three >= need, three, low)
    return low


@triton.jit
def draw_rows(
    logit_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    uniform_ptr,
    token_ptr,
    vocab,
    logit_row_stride,
    TILE: tl.constexpr,
):
    """Grid (row). Temperature 0 takes the highest logit, ties the lowest id."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logit_ptr + row * logit_row_stride
    temperature = tl.load(temperature_ptr + row)
    peak = tl.full([], float("-inf"), tl.float32)
    wrong = tl.full([], 0, tl.int32)
    for first in range(0, vocab, TILE):
        x, _ = load_keys(row_ptr, first + tl.arange(0, TILE), vocab)
        peak = tl.maximum(peak, tl.max(x, 0))
        wrong += tl.sum(((x != x) | (x == float("inf"))).to(tl.int32), 0)
    bits = peak.to(tl.int32, bitcast=True)
    top = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    token = tl.full([], -1, tl.int32)
    if (wrong == 0) & (peak > float("-inf")):
        threshold = tl.full([], -(2**31), tl.int64)
        ties = vocab
        greedy = temperature == 0.0
        heat = 1.0 / tl.where(greedy, 1.0, temperature)
        min_p = tl.load(min_p_ptr + row)
        top_k = tl.where(greedy, 1, tl.load(top_k_ptr + row))
        if (top_k > 0) & (top_k < vocab):
            count = top_k.to(tl.float32)
            threshold = search(
                row_ptr, vocab, peak, heat, min_p, threshold, top + 1, count, False, TILE
            )
            above, equal = measure(row_ptr, vocab, peak, heat, min_p, threshold, False, TILE)
            ties = top_k - above.to(tl.int32)
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1.0:
            above, equal = measure(row_ptr, vocab, peak, heat, min_p, threshold, True, TILE)
            border = weight_at(threshold, peak, heat, min_p)
            need = top_p * (above + tl.minimum(ties, equal).to(tl.float32) * border)
            cut = search(row_ptr, vocab, peak, heat, min_p, threshold, top + 1, need, True, TILE)
            above, equal = measure(row_ptr, vocab, peak, heat, min_p, cut, True, TILE)
            border = weight_at(cut, peak, heat, min_p)
            room = tl.ceil((need - above) / tl.where(border > 0, border, 1.0))
            room = tl.maximum(tl.minimum(room, vocab * 1.0), 1.0).to(tl.int32)
            ties = tl.minimum(tl.where(cut == threshold, ties, vocab), room)
            threshold = cut
        token = pick(
            row_ptr, vocab, peak, heat, threshold, ties, min_p,
            tl.load(uniform_ptr + row), TILE,
        )  # fmt: skip
    tl.store(token_ptr + row, token)


@triton.jit
def weight_at(key, peak, heat, min_p):
    """What a token with this key weighs."""
    narrow = key.to(tl.int32)
    bits = narrow ^ ((narrow >> 31) & 0x7FFFFFFF)
    x = bits.to(tl.float32, bitcast=True)
    weight = tl.exp((tl.where(x == x, x, float("-inf")) - peak) * heat)
    return tl.where(weight >= min_p, weight, 0.0)


@triton.jit
def pick(row_ptr, vocab, peak, heat, threshold, ties, min_p, uniform, TILE: tl.constexpr):
    """The first id in vocabulary order at which the mass of what stays exceeds uniform of all."""
    token = tl.full([], 2**31 - 1, tl.int32)
    last = tl.full([], -1, tl.int32)
    mass = tl.full([], 0.0, tl.float32)
    for turn in tl.static_range(2):
        aim = mass * uniform
        mass = tl.full([], 0.0, tl.float32)
        seen = tl.full([], 0, tl.int32)
        for first in range(0, vocab, TILE):
            at = first + tl.arange(0, TILE)
            x, keys = load_keys(row_ptr, at, vocab)
            weight = tl.exp((x - peak) * heat)
            equal = ((keys == threshold) & (at < vocab)).to(tl.int32)
            rank = seen + tl.cumsum(equal, 0)
            stays = (keys > threshold) | ((equal > 0) & (rank <= ties))
            weight = tl.where(stays & (weight >= min_p) & (at < vocab), weight, 0.0)
            seen += tl.sum(equal, 0)
            running = mass + tl.cumsum(weight, 0)
            if turn == 1:
                hit = (weight > 0) & (running > aim)
                token = tl.minimum(token, tl.min(tl.where(hit, at, 2**31 - 1), 0))
                last = tl.maximum(last, tl.max(tl.where(weight > 0, at, -1), 0))
            mass += tl.sum(weight, 0)
    # Rounding can leave the last running sum a hair below the aim.
    return tl.minimum(token, last)


def sample_tokens(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """One token a row of logits [row, vocab]: int32 [row], INVALID where a row holds a NaN or plus
    infinity or nothing but minus infinity (which bans a token).

    temperatures (0: greedy), top_ps in (0, 1], min_ps in [0, 1], uniforms in [0, 1): [row] float32;
    top_ks [row] int32, 0 for all. A row's draw depends on nothing but that row. Rules apply in the
    order min_p, top_k, top_p. Raises ValueError for shapes that do not fit."""
    rows, vocab = logits.shape
    given = (temperatures, top_ks, top_ps, min_ps, uniforms)
    if any(values.shape != (rows,) for values in given) or logits.stride(1) != 1 or not vocab:
        raise ValueError(f"parameters of each row do not fit logits {list(logits.shape)}")
    tokens = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows:
        draw_rows[(rows,)](
            logits, *given, tokens, vocab, logits.stride(0), TILE=TILE, num_warps=WARPS
        )
    return tokens
