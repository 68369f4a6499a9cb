"""Attention of one step through the paged kernels: planned once a step, launched once a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.dispatch import Fusing, paged_attention
from kernels.paged_attention.plan import Span, build_each
from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import StepItem
from shared.engine.graph_plan import Shape, widest_items
from shared.engine.paged_kv import PagedKv


class DeviceAttention:
    """Implements StepAttention, by one plan a window over tables that all of them share. Prefill
    and decode share a launch where `fusing` says it pays."""

    def __init__(
        self,
        kv: PagedKv,
        items: Sequence[StepItem],
        rules: AttentionRules,
        fusing: Fusing | None = None,
    ) -> None:
        spans = [Span(item.start, len(item.tokens), item.page_table) for item in items]
        windows = {window or None for window in rules.windows} or {None}
        self._plans = build_each(spans, rules.heads // kv.layout.kv_heads, kv.device, windows)
        self._kv = kv
        self._rules = rules
        self._fusing = fusing

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        rules = self._rules
        return paged_attention(
            self._plans[rules.window(layer) or None],
            queries.contiguous(),
            self._kv.cells[:, layer],
            rules.scale,
            cap=rules.cap,
            # The interpreter does not multiply 16-bit numbers.
            upcast=self._kv.device.type != "cuda",
            fusing=self._fusing,
        )


class DeviceStaticAttention(DeviceAttention):
    """The paged decode kernel over tables of fixed width; implements StaticAttention. Its grids
    have room for the longest context of the shape, or the window; programs beyond an item's end
    find nothing to do."""

    def __init__(self, kv: PagedKv, rules: AttentionRules, shape: Shape) -> None:
        super().__init__(kv, widest_items(shape, kv.layout.block_tokens), rules)

    def fill(self, items: Sequence[StepItem]) -> None:
        decode = next(iter(self._plans.values())).decode
        if decode is None:
            raise AssertionError("a recorded step decodes")
        width = decode.tables.shape[1]
        tables = [[*item.page_table, *[0] * (width - len(item.page_table))] for item in items]
        decode.tables.copy_(torch.tensor(tables, dtype=torch.int32), non_blocking=True)
        lengths = [item.start + 1 for item in items]
        decode.lengths.copy_(torch.tensor(lengths, dtype=torch.int32), non_blocking=True)
