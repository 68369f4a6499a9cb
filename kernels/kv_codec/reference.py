"""What the KV codec computes, in plain float32 torch; the kernels agree with it bit for bit."""

from __future__ import annotations

import torch

ANCHOR_LEVELS = 127
LARGEST_SCALE = 65504.0


def encode(x: torch.Tensor, bins: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [token, channel] -> symbols uint8 [token, channel], scales float16 [token]."""
    symbols = torch.empty(x.shape, dtype=torch.uint8)
    scales = torch.empty(len(x), dtype=torch.float16)
    for first in range(0, len(x), group):
        rows = x[first : first + group].float()
        symbols[first], scales[first] = _quantise(rows[0], ANCHOR_LEVELS)
        anchor = _restore(symbols[first], scales[first], ANCHOR_LEVELS)
        for place, row in enumerate(rows[1:], first + 1):
            symbols[place], scales[place] = _quantise(row - anchor, _levels(bins))
    return symbols, scales


def decode(symbols: torch.Tensor, scales: torch.Tensor, bins: int, group: int) -> torch.Tensor:
    """The inverse, float32 [token, channel]."""
    out = torch.empty(symbols.shape, dtype=torch.float32)
    for first in range(0, len(symbols), group):
        out[first] = _restore(symbols[first], scales[first], ANCHOR_LEVELS)
        for place in range(first + 1, min(first + group, len(symbols))):
            out[place] = out[first] + _restore(symbols[place], scales[place], _levels(bins))
    return out


def _levels(bins: int) -> int:
    return min(max(bins // 2 - 1, 1), ANCHOR_LEVELS)


def _quantise(x: torch.Tensor, levels: int) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().max().clamp(max=LARGEST_SCALE).half()
    if scale == 0:
        return torch.full_like(x, levels, dtype=torch.uint8), scale
    placed = torch.floor(x * levels / scale.float() + (levels + 0.5))
    return placed.clamp(0, 2 * levels).to(torch.uint8), scale


def _restore(symbols: torch.Tensor, scale: torch.Tensor, levels: int) -> torch.Tensor:
    return (symbols.float() - levels) * scale.float() / levels
