"""The page memory as torch sees it, and where in it a step's new keys and values go.

memory [page, layer, k|v, kv_head, token, head_dim]      a row = one head at one position
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from shared.engine.batch import StepItem
from shared.kv.layout import PageLayout

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PagedKv:
    """Typed views of one page memory. Holds no state of its own."""

    def __init__(self, memory: torch.Tensor, layout: PageLayout) -> None:
        """`memory`: bytes, [page, page_bytes], contiguous, on the engine's device."""
        self.layout = layout
        self.device = memory.device
        self.dtype = DTYPES[layout.dtype]
        self.cells = memory.view(self.dtype).view(memory.shape[0], *layout.page_shape)
        self.rows = self.cells.view(-1, layout.head_dim)
        self.strips = self.cells.view(-1, layout.block_tokens * layout.head_dim)
        """One strip = one head's positions of one block in one layer, keys or values."""

    @property
    def layer_strips(self) -> int:
        """Strips from one layer to the next inside a page."""
        return 2 * self.layout.kv_heads

    def page_strips(self, tables: torch.Tensor) -> torch.Tensor:
        """[k|v, ..., kv_head, page] strip numbers in layer 0 for page ids [..., page]."""
        heads = torch.arange(self.layer_strips).view(2, *[1] * (tables.dim() - 1), -1, 1)
        return tables.unsqueeze(-2) * (self.layout.layers * self.layer_strips) + heads

    def new_rows(self, items: Sequence[StepItem]) -> torch.Tensor:
        """[token * k|v * kv_head] row numbers in layer 0 for all tokens of a step, flat."""
        block = self.layout.block_tokens
        per_page = self.layout.layers * self.layer_strips * block
        starts: list[int] = []
        for item in items:
            for position in range(item.start, item.start + len(item.tokens)):
                place, offset = divmod(position, block)
                starts.append(item.page_table[place] * per_page + offset)
        heads = torch.arange(self.layer_strips) * block
        return (torch.tensor(starts)[:, None] + heads).flatten().to(self.device)

    def slots(self, new_rows: torch.Tensor) -> torch.Tensor:
        """[token] int32: page * block_tokens + offset of what `new_rows` gave, on its device."""
        block = self.layout.block_tokens
        first = new_rows.view(-1, self.layer_strips)[:, 0]
        pages = first // (self.layout.layers * self.layer_strips * block)
        return (pages * block + first % block).int()

    def write(self, layer: int, new_rows: torch.Tensor, values: torch.Tensor) -> None:
        """Store one layer's keys and values, [token, k|v * kv_head, head_dim]."""
        rows = new_rows + layer * self.layer_strips * self.layout.block_tokens
        self.rows.index_copy_(0, rows, values.reshape(-1, self.layout.head_dim))
