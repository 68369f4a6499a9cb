"""Attention of one step through the paged kernels: planned once a step, launched once a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.dispatch import Fusing, paged_attention
from kernels.paged_attention.plan import AttentionPlan, Span, build
from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import StepItem
from shared.engine.graph_plan import Shape, widest_items
from shared.engine.paged_kv import PagedKv


class DeviceAttention:
    """Implements StepAttention. Prefill and decode share a launch where `fusing` says it pays."""

    def __init__(
        self,
        kv: PagedKv,
        items: Sequence[StepItem],
        rules: AttentionRules,
        fusing: Fusing | None = None,
    ) -> None:
        spans = [Span(item.start, len(item.tokens), item.page_table) for item in items]
        self._kv = kv
        self._rules = rules
        self._fusing = fusing
        group = rules.heads // kv.layout.kv_heads
        self._plans = {
            window: build(spans, group, kv.device, window=window or None)
            for window in set(rules.windows) or {0}
        }

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        plan = self._plans[self._rules.window(layer)]
        return _launched(plan, self._kv, layer, queries, self._rules.scale, self._fusing)


class DeviceStaticAttention:
    """The paged decode kernel over tables of fixed width; implements StaticAttention. Its grid has
    room for the longest context of the shape; programs beyond an item's end find nothing to do."""

    def __init__(self, kv: PagedKv, rules: AttentionRules, shape: Shape) -> None:
        widest = widest_items(shape, kv.layout.block_tokens)
        spans = [Span(item.start, 1, item.page_table) for item in widest]
        self._plan = build(spans, rules.heads // kv.layout.kv_heads, kv.device)
        self._kv = kv
        self._scale = rules.scale

    def fill(self, items: Sequence[StepItem]) -> None:
        decode = self._plan.decode
        if decode is None:
            raise AssertionError("a recorded step decodes")
        width = decode.tables.shape[1]
        tables = [[*item.page_table, *[0] * (width - len(item.page_table))] for item in items]
        decode.tables.copy_(torch.tensor(tables, dtype=torch.int32), non_blocking=True)
        lengths = [item.start + 1 for item in items]
        decode.lengths.copy_(torch.tensor(lengths, dtype=torch.int32), non_blocking=True)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        return _launched(self._plan, self._kv, layer, queries, self._scale, None)


def _launched(
    plan: AttentionPlan,
    kv: PagedKv,
    layer: int,
    queries: torch.Tensor,
    scale: float,
    fusing: Fusing | None,
) -> torch.Tensor:
    rows, cells = queries.contiguous(), kv.cells[:, layer]
    # The interpreter does not multiply 16-bit numbers.
    upcast = kv.device.type != "cuda"
    return paged_attention(plan, rows, cells, scale, upcast=upcast, fusing=fusing)
