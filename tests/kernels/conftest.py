"""Kernels run in Triton's interpreter here; the switch is read when they are imported."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN (or 171), so that whatever a kernel leaves unwritten shows."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(made: torch.Tensor) -> torch.Tensor:
        return made.fill_(float("nan") if made.is_floating_point() else 171)

    def poisoned(*shape: Any, **given: Any) -> torch.Tensor:
        return poison(empty(*shape, **given))

    def poisoned_like(*tensor: Any, **given: Any) -> torch.Tensor:
        return poison(empty_like(*tensor, **given))

    monkeypatch.setattr(torch, "empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", poisoned_like)
