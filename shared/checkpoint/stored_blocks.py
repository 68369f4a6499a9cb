"""Quantised matrices as a file stores them, for engines that compute on them as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES: Final = {"q8_0": 34, "q4_0": 18, "q4_1": 20}
"""Bytes of 32 weights: one or two half-precision scales, then the codes."""


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """One matrix: each row is blocks of 32 neighbouring weights."""

    kind: str
    blocks: NDArray[np.uint8]
    """[row, block, bytes]"""


@runtime_checkable
class BlockSource(Protocol):
    """A tensor source that can give matrices without dequantising them."""

    def blocks(self, name: str) -> StoredBlocks | None:
        """The matrix in the internal row order, or None where it is stored in another way.
        Raises CheckpointError."""
        ...
