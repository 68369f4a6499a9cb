"""A model over pages full of NaN: reading anything unwritten shows."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared.checkpoint import Checkpoint
from shared.checkpoint.geometry import page_layout
from shared.engine.attention import host_library, plan_attention
from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import StepItem
from shared.engine.host_attention import Workspace
from shared.engine.host_pages import HostPages
from shared.engine.model import DecoderModel, step_inputs
from shared.engine.native.operations import NativeOperations
from shared.engine.paged_kv import DTYPES, PagedKv
from shared.engine.team import Alone
from shared.engine.weights import load_weights

from .sequences import BLOCK

PAGES = 64


@dataclass
class Bench:
    """Steps a model without an engine around it."""

    checkpoint: Checkpoint
    model: DecoderModel
    kv: PagedKv
    workspace: Workspace
    rules: AttentionRules
    library: ctypes.CDLL | None

    def logits(self, items: Sequence[StepItem]) -> torch.Tensor:
        with torch.inference_mode():
            plan = plan_attention(self.kv, items, self.rules, self.workspace, self.library)
            return self.model.forward(step_inputs(self.kv, items), plan)


def bench(checkpoint: Checkpoint, dtype: str = "float32", compiled: bool = False) -> Bench:
    """`compiled`: with the CPU's compiled operations where this host and the shape have them."""
    layout = page_layout(checkpoint, dtype, BLOCK)
    kv = PagedKv(torch.from_numpy(HostPages(PAGES, layout.page_bytes).bytes), layout)
    kv.cells.fill_(float("nan"))
    rules = AttentionRules.of(checkpoint.spec)
    library = host_library(layout, rules, "stored") if compiled else None
    kept = None if library is None else "stored"
    weights = load_weights(checkpoint, torch.device("cpu"), DTYPES[dtype], Alone(), kept)
    operations = None if library is None else NativeOperations(library, kv)
    model = DecoderModel(checkpoint.spec, weights, kv, operations=operations)
    return Bench(checkpoint, model, kv, Workspace(kv.dtype), rules, library)
