"""The Llama family, forward only: one token matrix for all linear layers, paged attention.

Touvron et al. (2023): RMSNorm before each half, rotary positions, grouped queries, SwiGLU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as functional

from shared.checkpoint.spec import ModelSpec
from shared.engine.attention import StepAttention
from shared.engine.batch import StepItem
from shared.engine.paged_kv import PagedKv
from shared.engine.rope import angles, rotate_
from shared.engine.weights import LayerWeights, ModelWeights

_FEW_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's items as tensors on the device, all items' tokens one after the other."""

    tokens: torch.Tensor
    positions: torch.Tensor
    new_rows: torch.Tensor
    """Where each token's keys and values go (`PagedKv.new_rows`)."""
    drawn_rows: torch.Tensor
    """Last row of each item that draws."""


def step_inputs(kv: PagedKv, items: Sequence[StepItem]) -> StepInputs:
    """Flatten a step."""
    drawn, end = [], 0
    for item in items:
        end += len(item.tokens)
        if item.draw is not None:
            drawn.append(end - 1)
    positions = [p for item in items for p in range(item.start, item.start + len(item.tokens))]
    return StepInputs(
        tokens=torch.tensor([token for item in items for token in item.tokens], device=kv.device),
        positions=torch.tensor(positions, device=kv.device),
        new_rows=kv.new_rows(items),
        drawn_rows=torch.tensor(drawn, device=kv.device, dtype=torch.int64),
    )


class LlamaModel:
    """Computes logits and fills pages. Not thread-safe; knows nothing of sequences."""

    def __init__(self, spec: ModelSpec, weights: ModelWeights, kv: PagedKv) -> None:
        self._spec = spec
        self._weights = weights
        self._kv = kv

    def forward(self, inputs: StepInputs, attention: StepAttention) -> torch.Tensor:
        """[drawing item, vocab] float32 logits; keys and values of all tokens are in the pages."""
        turn = angles(inputs.positions, self._weights.frequencies)
        hidden = functional.embedding(inputs.tokens, self._weights.embed)
        last = len(self._weights.layers) - 1
        for number, layer in enumerate(self._weights.layers):
            queries = self._queries(number, layer, hidden, turn, inputs.new_rows)
            if number == last:
                break
            mixed = attention.attend(number, queries)
            hidden = self._finish(layer, hidden, mixed)
        if not len(inputs.drawn_rows):
            return hidden.new_empty((0, self._spec.vocab), dtype=torch.float32)
        mixed = attention.attend(last, queries)[inputs.drawn_rows]
        hidden = self._finish(self._weights.layers[last], hidden[inputs.drawn_rows], mixed)
        return project(self._norm(hidden, self._weights.norm), self._weights.head).float()

    def _queries(
        self,
        number: int,
        layer: LayerWeights,
        hidden: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        new_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Store the layer's keys and values; give the queries, [token, head, head_dim]."""
        spec = self._spec
        mixed = project(self._norm(hidden, layer.attn_norm), layer.qkv)
        heads = mixed.view(len(hidden), -1, spec.head_dim)
        rotate_(heads[:, : spec.heads + spec.kv_heads], *turn)
        self._kv.write(number, new_rows, heads[:, spec.heads :])
        return heads[:, : spec.heads]

    def _finish(
        self, layer: LayerWeights, hidden: torch.Tensor, mixed: torch.Tensor
    ) -> torch.Tensor:
        hidden = hidden + project(mixed.flatten(1), layer.out)
        gate, up = project(self._norm(hidden, layer.ffn_norm), layer.gate_up).chunk(2, dim=-1)
        return hidden + project(functional.silu(gate) * up, layer.down)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, (self._spec.hidden,), weight, self._spec.rms_eps)


def project(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """rows @ weight.T, contiguous. A few float32 rows are multiplied the other way round on the
    CPU, one row as two: measured, that reads the weights up to three times as fast."""
    count = len(rows)
    if count > _FEW_ROWS or rows.device.type != "cpu" or rows.dtype != torch.float32:
        return functional.linear(rows, weight)
    thin = rows.repeat(2, 1) if count == 1 else rows
    return torch.mm(weight, thin.t())[:, :count].t().contiguous()
