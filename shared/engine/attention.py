"""Attention of one step over paged KV: the seam between the model and what a device does best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from shared.engine.batch import StepItem
from shared.engine.host_attention import HostAttention, Workspace
from shared.engine.paged_kv import PagedKv


class StepAttention(Protocol):
    """Planned once a step, called once a layer."""

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Causal attention of [token, head, head_dim] over the pages; the step's own keys and
        values of this layer are already in them. Same shape back."""
        ...


class DeviceAttention:
    """Runs the paged kernels."""

    def __init__(self, kv: PagedKv, items: Sequence[StepItem], heads: int) -> None:
        # Loading Triton costs seconds and memory that a CPU engine never needs.
        from kernels.paged_attention.plan import Span, build

        spans = [Span(item.start, len(item.tokens), item.page_table) for item in items]
        self._kv = kv
        self._plan = build(spans, heads // kv.layout.kv_heads, kv.device)
        self._scale = kv.layout.head_dim**-0.5

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        from kernels.dispatch import paged_attention

        return paged_attention(
            self._plan, queries.contiguous(), self._kv.cells[:, layer], self._scale
        )


def plan_attention(
    kv: PagedKv, items: Sequence[StepItem], heads: int, workspace: Workspace
) -> StepAttention:
    """The attention of this step on the device that holds the pages."""
    if kv.device.type == "cuda":
        return DeviceAttention(kv, items, heads)
    return HostAttention(kv, items, heads, workspace)
