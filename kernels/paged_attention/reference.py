"""What paged attention means, in plain torch. Slow, obvious, and the judge of the rest.

kv         [page, k|v, kv_head, token, head_dim]   one layer's view of the page memory
page_table [pages of this sequence]                 page of positions 0..block_tokens-1 first
queries    [count, head, head_dim]                  positions start .. start+count-1

float64 queries are answered in float64, all others in float32.
"""

from __future__ import annotations

import torch


def gather(
    kv: torch.Tensor, page_table: torch.Tensor, length: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of positions 0..length-1: two tensors [kv_head, length, dim]."""
    pages = kv[page_table.long()].to(dtype)
    both = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
    return both[0], both[1]


def attend(
    queries: torch.Tensor,
    kv: torch.Tensor,
    page_table: torch.Tensor,
    start: int,
    scale: float,
    window: int | None = None,
    cap: float = 0.0,
) -> torch.Tensor:
    """Causal attention of one sequence's queries over its pages: [count, head, head_dim]. With a
    window a query at position p sees positions p - window + 1 .. p; with a cap scores are
    cap * tanh(score / cap)."""
    count, heads, _ = queries.shape
    wide = torch.promote_types(queries.dtype, torch.float32)
    keys, values = gather(kv, page_table, start + count, wide)
    group = heads // keys.shape[0]
    keys = keys.repeat_interleave(group, dim=0)
    values = values.repeat_interleave(group, dim=0)
    scores = torch.einsum("qhd,hkd->hqk", queries.to(wide), keys) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    back = torch.arange(start, start + count)[:, None] - torch.arange(start + count)
    visible = (back >= 0) & (back < (window or start + count))
    scores = scores.masked_fill(~visible.to(scores.device), float("-inf"))
    return torch.einsum("hqk,hkd->qhd", scores.softmax(-1), values).to(queries.dtype)
