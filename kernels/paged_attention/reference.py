"""What paged attention means, in plain float32 torch. Slow, obvious, and the judge of the rest.

kv         [page, k|v, kv_head, token, head_dim]   one layer's view of the page memory
page_table [pages of this sequence]                 page of positions 0..block_tokens-1 first
queries    [count, head, head_dim]                  positions start .. start+count-1
"""

from __future__ import annotations

import torch


def gather(
    kv: torch.Tensor, page_table: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of positions 0..length-1: two float32 tensors [kv_head, length, dim]."""
    pages = kv[page_table.long()].float()
    both = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
    return both[0], both[1]


def attend(
    queries: torch.Tensor,
    kv: torch.Tensor,
    page_table: torch.Tensor,
    start: int,
    scale: float,
) -> torch.Tensor:
    """Causal attention of one sequence's queries over its pages: [count, head, head_dim]."""
    count, heads, _ = queries.shape
    keys, values = gather(kv, page_table, start + count)
    group = heads // keys.shape[0]
    keys = keys.repeat_interleave(group, dim=0)
    values = values.repeat_interleave(group, dim=0)
    scores = torch.einsum("qhd,hkd->hqk", queries.float(), keys) * scale
    visible = torch.arange(start + count) <= torch.arange(start, start + count)[:, None]
    scores = scores.masked_fill(~visible.to(scores.device), float("-inf"))
    return torch.einsum("hqk,hkd->qhd", scores.softmax(-1), values).to(queries.dtype)
