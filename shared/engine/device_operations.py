"""A model's operations through our kernels, beside the device library's matrix products.

One launch a norm, a gate, a rotation with its page write. The residual is added by the product
that ends a half, or with the norm that follows where ranks have to be summed first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from kernels.dispatch import add_rms_norm, rms_norm, rope_write, silu_mul
from shared.engine.operations import Matrix, plain
from shared.engine.paged_kv import PagedKv
from shared.engine.rope import Turn


class DeviceOperations:
    """Implements Operations for plain weights of the pages' dtype."""

    def __init__(self, kv: PagedKv) -> None:
        self._kv = kv
        self._slots = torch.empty(0)

    def embed(self, tokens: torch.Tensor, table: Matrix) -> torch.Tensor:
        return functional.embedding(tokens, plain(table))

    def norm(self, rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        return rms_norm(flat, weight, epsilon).view(rows.shape)

    def add_norm(
        self, part: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return hidden, add_rms_norm(part, hidden, weight, epsilon)

    def project(
        self, rows: torch.Tensor, matrix: Matrix, onto: torch.Tensor | None = None
    ) -> torch.Tensor:
        weight = plain(matrix)
        return functional.linear(rows, weight) if onto is None else onto.addmm_(rows, weight.t())

    def turn_and_store(
        self, layer: int, heads: torch.Tensor, turn: Turn, new_rows: torch.Tensor
    ) -> None:
        # Anew in each step's first layer, not by who asks: a recorded step is asked only once, and
        # each replay has other rows.
        if layer == 0:
            self._slots = self._kv.slots(new_rows)
        cosines, sines = (angles.squeeze(1) for angles in turn)
        rope_write(heads, cosines, sines, self._slots, self._kv.cells[:, layer])

    def silu_gate(self, both: torch.Tensor) -> torch.Tensor:
        return silu_mul(both)
