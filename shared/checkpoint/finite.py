"""Refuses what would turn every answer into noise. Knows no formats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.errors import CheckpointError


def check_finite(values: NDArray[np.float32], where: str) -> None:
    """Norms and biases reach every token, and are small enough to be looked at. Matrices are not.
    Raises CheckpointError."""
    if values.ndim == 1 and not np.isfinite(values).all():
        raise CheckpointError(f"{where} holds values that are not finite")
