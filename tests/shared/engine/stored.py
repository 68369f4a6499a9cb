"""Matrices as a GGUF file stores them."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants

from shared.checkpoint.stored_blocks import StoredBlocks


def stored_matrix(kind: str, matrix: torch.Tensor) -> tuple[StoredBlocks, torch.Tensor]:
    """Its blocks, and the float32 values that they stand for."""
    outs, ins = matrix.shape
    storage = GGMLQuantizationType[kind.upper()]
    blocks = quants.quantize(matrix.numpy(), storage)
    whole = torch.from_numpy(quants.dequantize(blocks, storage).astype(np.float32))
    return StoredBlocks(kind, blocks.reshape(outs, ins // 32, -1)), whole
