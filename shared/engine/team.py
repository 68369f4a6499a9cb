"""Tensor parallelism as the model sees it: partial sums to add up, partial logits to join.

Shoeybi et al., Megatron-LM (2019): the first matrix of each half is split by rows (heads, MLP
columns), the second by columns, so one sum ends each half.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Team(Protocol):
    """The ranks that compute one model together; each method is called by all of them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum_(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, on every rank; may reuse `partial`. Raises RuntimeError when
        a rank is gone."""
        ...

    def join(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        """The ranks' [row, column] parts side by side, `columns` in all, on every rank."""
        ...


class Alone:
    """The team of a model on one device."""

    rank = 0
    size = 1

    def sum_(self, partial: torch.Tensor) -> torch.Tensor:
        return partial

    def join(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        return part
