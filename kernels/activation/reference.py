"""What the gate means, in float64. SwiGLU: Shazeer (2020)."""

from __future__ import annotations

import torch


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[rows, 2 * width], the gate first -> silu(gate) * up, [rows, width] float64."""
    gate, up = gate_up.double().chunk(2, -1)
    return gate * torch.sigmoid(gate) * up
