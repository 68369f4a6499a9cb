"""Rows of logits in groups that stay in a CPU core's cache while several passes go over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

_CACHE_BYTES: Final = 512 * 1024


def in_groups(rows: list[int], logits: torch.Tensor) -> Iterator[tuple[list[int], torch.Tensor]]:
    """These rows of [row, vocab] logits, group by group; all together on a GPU."""
    size = len(rows)
    if logits.device.type == "cpu":
        size = max(1, _CACHE_BYTES // (logits.shape[1] * logits.element_size()))
    for at in range(0, len(rows), max(1, size)):
        part = rows[at : at + size]
        if len(part) == len(logits):
            yield part, logits
        elif part[-1] - part[0] == len(part) - 1:
            yield part, logits[part[0] : part[-1] + 1]
        else:
            yield part, logits[torch.tensor(part, device=logits.device)]
