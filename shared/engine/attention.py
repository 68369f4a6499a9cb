"""Attention of one step over paged KV: the seam between the model and what a device does best."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch

from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import StepItem
from shared.engine.host_attention import HostAttention, Workspace
from shared.engine.native.attention import NativeAttention, fits
from shared.engine.native.library import Native, native
from shared.engine.paged_kv import PagedKv
from shared.errors import StartupError
from shared.kv.layout import PageLayout


class StepAttention(Protocol):
    """Planned once a step, called once a layer."""

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Causal attention of [token, head, head_dim] over the pages; the step's own keys and
        values of this layer are already in them. Same shape back."""
        ...


def plan_attention(
    kv: PagedKv,
    items: Sequence[StepItem],
    rules: AttentionRules,
    workspace: Workspace,
    library: ctypes.CDLL | None = None,
) -> StepAttention:
    """The attention of this step over pages in host memory. `library`: the compiled one (float32
    queries whatever the pages' dtype); None: torch's."""
    if library is not None:
        return NativeAttention(library, kv, items, rules)
    return HostAttention(kv, items, rules, workspace)


def host_library(layout: PageLayout, rules: AttentionRules, weights: str) -> ctypes.CDLL | None:
    """The CPU's compiled operations where there is a compiler and they know the shapes. Raises
    StartupError where weights in 8 bits need them and there are none."""
    found = native() if fits(layout, rules) else Native(None, "the model's shape")
    if found.functions is None and weights == "int8":
        raise StartupError(f"weights in int8 need the compiled operations: {found.reason}")
    return found.functions
