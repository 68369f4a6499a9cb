"""Attention of one step through the compiled library: the plan's page tables and row tiles."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import torch

from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import StepItem
from shared.engine.native.library import rounds
from shared.engine.native.packing import BLOCK, KINDS, LANES
from shared.engine.paged_kv import PagedKv
from shared.kv.layout import PageLayout

_TILE_ROWS: Final = 96
_ROUNDED_ROWS: Final = 192
_MAX_DIM: Final = 256


class _Attention(ctypes.Structure):
    """`Attention` in layers.h."""

    _fields_ = (
        ("cells", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("tasks", ctypes.c_void_p),
        ("drawn", ctypes.c_void_p),
        ("task_count", ctypes.c_int64),
        ("drawn_count", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("block_tokens", ctypes.c_int64),
        ("page_cells", ctypes.c_int64),
        ("layer_cells", ctypes.c_int64),
        ("query_stride", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("cap", ctypes.c_float),
        ("rounded", ctypes.c_int64),
    )


class NativeAttention:
    """One step's plan; implements StepAttention. A tile is a run of an item's tokens with all
    query heads of one key head."""

    def __init__(
        self,
        library: ctypes.CDLL,
        kv: PagedKv,
        items: Sequence[StepItem],
        rules: AttentionRules,
    ) -> None:
        self._library = library
        self._rules = rules
        self._threads = torch.get_num_threads()
        layout = kv.layout
        self.rounded = rounds(library, layout.dtype) and layout.head_dim % BLOCK == 0
        """Queries and weights of the softmax are rounded to bfloat16, as the pages are."""
        rows = _ROUNDED_ROWS if self.rounded else _TILE_ROWS
        together = max(1, rows // (rules.heads // layout.kv_heads))
        self._tables = torch.tensor([page for item in items for page in item.page_table])
        self._tasks = torch.tensor(_tasks(items, together))
        self._drawn = torch.tensor(_drawn(items))
        self._struct = _Attention(
            cells=kv.cells.data_ptr(),
            tables=self._tables.data_ptr(),
            tasks=self._tasks.data_ptr(),
            drawn=self._drawn.data_ptr(),
            task_count=len(self._tasks),
            drawn_count=len(self._drawn),
            tokens=sum(len(item.tokens) for item in items),
            kind=KINDS[layout.dtype],
            heads=rules.heads,
            kv_heads=layout.kv_heads,
            head_dim=layout.head_dim,
            block_tokens=layout.block_tokens,
            page_cells=kv.cells[0].numel(),
            layer_cells=kv.cells[0, 0].numel(),
            scale=rules.scale,
            cap=rules.cap,
            rounded=self.rounded,
        )
        self.address = ctypes.addressof(self._struct)
        """Of the struct that the library reads."""

    @property
    def drawn_rows(self) -> int:
        """Of how many rows the step draws."""
        return len(self._drawn)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        self._struct.window = self._rules.window(layer)
        self._struct.query_stride = queries.stride(0)
        out = torch.empty(queries.shape)
        self._library.baton_attention(
            self.address, layer, queries.data_ptr(), out.data_ptr(), self._threads
        )
        return out


def fits(layout: PageLayout, rules: AttentionRules) -> bool:
    """Whether the library computes attention of this shape."""
    group = rules.heads // layout.kv_heads
    return (
        layout.head_dim % LANES == 0
        and layout.head_dim <= _MAX_DIM
        and layout.block_tokens % LANES == 0
        and group <= _TILE_ROWS
    )


def _tasks(items: Sequence[StepItem], together: int) -> list[tuple[int, int, int, int]]:
    """(first row, its position, rows, where its page table begins), the longest first."""
    tasks = []
    row = table = 0
    for item in items:
        count = len(item.tokens)
        for first in range(0, count, together):
            rows = min(together, count - first)
            tasks.append((row + first, item.start + first, rows, table))
        row += count
        table += len(item.page_table)
    return sorted(tasks, key=lambda task: task[2] * (task[1] + task[2]), reverse=True)


def _drawn(items: Sequence[StepItem]) -> list[tuple[int, int, int, int]]:
    """The task of the last row of each item that draws, alone."""
    tasks = []
    row = table = 0
    for item in items:
        row += len(item.tokens)
        if item.draw is not None:
            tasks.append((row - 1, item.start + len(item.tokens) - 1, 1, table))
        table += len(item.page_table)
    return tasks
