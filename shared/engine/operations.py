"""What a model's forward pass is made of: the seam between the model and how a device computes."""

from __future__ import annotations

from typing import Final, Protocol

import torch
import torch.nn.functional as functional

from shared.engine.native.packing import PackedMatrix
from shared.engine.paged_kv import PagedKv
from shared.engine.rope import Turn, rotate_

Matrix = torch.Tensor | PackedMatrix
"""[out, in], as the operations of its device want it."""

_FEW_ROWS: Final = 8


class Operations(Protocol):
    """Used from the engine's thread. Rows are [row, width], contiguous unless said otherwise."""

    def embed(self, tokens: torch.Tensor, table: Matrix) -> torch.Tensor:
        """The table's rows of the tokens."""
        ...

    def norm(self, rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """RMSNorm over the last dimension, of any strides."""
        ...

    def add_norm(
        self, part: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden + part, whose memory may be that of either, and the RMSNorm of it."""
        ...

    def project(
        self, rows: torch.Tensor, matrix: Matrix, onto: torch.Tensor | None = None
    ) -> torch.Tensor:
        """rows @ matrix.T, plus `onto` where given, whose memory may become the result."""
        ...

    def turn_and_store(
        self, layer: int, heads: torch.Tensor, turn: Turn, new_rows: torch.Tensor
    ) -> None:
        """Rotate queries and keys of [token, query|key|value head, head_dim] in place; store
        keys and values where `PagedKv.new_rows` says."""
        ...

    def silu_gate(self, both: torch.Tensor) -> torch.Tensor:
        """[row, width] = silu(left half) * right half of [row, 2 width]."""
        ...


class TorchOperations:
    """Torch's own, on any device, in the dtype of the weights."""

    def __init__(self, kv: PagedKv) -> None:
        self._kv = kv

    def embed(self, tokens: torch.Tensor, table: Matrix) -> torch.Tensor:
        return functional.embedding(tokens, plain(table))

    def norm(self, rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        return functional.rms_norm(rows, weight.shape, weight, epsilon)

    def add_norm(
        self, part: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = hidden + part
        return hidden, self.norm(hidden, weight, epsilon)

    def project(
        self, rows: torch.Tensor, matrix: Matrix, onto: torch.Tensor | None = None
    ) -> torch.Tensor:
        found = project(rows, plain(matrix))
        return found if onto is None else onto + found

    def turn_and_store(
        self, layer: int, heads: torch.Tensor, turn: Turn, new_rows: torch.Tensor
    ) -> None:
        first_value = heads.shape[1] - self._kv.layout.kv_heads
        rotate_(heads[:, :first_value], *turn)
        keys = first_value - self._kv.layout.kv_heads
        self._kv.write(layer, new_rows, heads[:, keys:])

    def silu_gate(self, both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, dim=-1)
        return functional.silu(gate) * up


def project(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """rows @ weight.T, contiguous. A few float32 rows are multiplied the other way round on the
    CPU, one row as two: measured, that reads the weights up to three times as fast."""
    count = len(rows)
    if count > _FEW_ROWS or rows.device.type != "cpu" or rows.dtype != torch.float32:
        return functional.linear(rows, weight)
    thin = rows.repeat(2, 1) if count == 1 else rows
    return torch.mm(weight, thin.t())[:, :count].t().contiguous()


def columns(matrix: Matrix) -> int:
    """Width of the rows that it multiplies."""
    return matrix.shape[1] if isinstance(matrix, torch.Tensor) else matrix.ins


def plain(matrix: Matrix) -> torch.Tensor:
    """A matrix that was not packed. Raises TypeError."""
    if isinstance(matrix, torch.Tensor):
        return matrix
    raise TypeError("packed weights need the operations that they were packed for")
