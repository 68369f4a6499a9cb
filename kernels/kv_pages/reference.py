"""What gathering and scattering pages mean, in plain torch indexing."""

from __future__ import annotations

import torch


def gather(
    pages: torch.Tensor, ids: torch.Tensor, first_head: int, heads: int, dtype: torch.dtype
) -> torch.Tensor:
    """[page, layer, 2, kv_head, token, head_dim] -> [id, layer, 2, heads, token, head_dim]."""
    return pages[ids.long(), :, :, first_head : first_head + heads].to(dtype)


def scatter(
    staged: torch.Tensor, pages: torch.Tensor, ids: torch.Tensor, first_head: int
) -> torch.Tensor:
    """A copy of `pages` with `staged` put at head `first_head` of the pages `ids`."""
    out = pages.clone()
    out[ids.long(), :, :, first_head : first_head + staged.shape[3]] = staged.to(pages.dtype)
    return out
