"""Weights in the panels that the library reads: sixteen rows, 32 columns a block.

Knows GGUF's blocks (Q8_0, Q4_0, Q4_1) and plain matrices; codes.h and rounded_codes.h read them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from shared.checkpoint.stored_blocks import StoredBlocks

LANES: Final = 16
BLOCK: Final = 32
KINDS: Final = {
    "float32": 0,
    "bfloat16": 1,
    "float16": 2,
    "q8_0": 3,
    "q4_0": 4,
    "q4_1": 5,
    "int8": 6,
}
_INT8_TOP: Final = 127.0


class WeightStruct(ctypes.Structure):
    """`Weight` in weight.h."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("kind", ctypes.c_int64),
        ("outs", ctypes.c_int64),
        ("ins", ctypes.c_int64),
        ("rounded", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One [outs, ins] matrix in panels. `address` is of its struct, for the library."""

    kind: str
    outs: int
    ins: int
    panels: torch.Tensor
    """[panel, block, bytes] uint8."""
    scales: torch.Tensor
    """int8: [panel * 16] float32; else empty."""
    struct: WeightStruct
    rounded: bool
    """Products round rows and weights to bfloat16; the panels lie as rounded_codes.h has them."""

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes + self.scales.nbytes


def pack_dense(matrix: torch.Tensor, rounded: bool = False) -> PackedMatrix:
    """Keep float32, bfloat16 or float16 as they are; `rounded`: as bfloat16."""
    outs, ins = matrix.shape
    kept = matrix.bfloat16() if rounded else matrix
    kind = str(kept.dtype).removeprefix("torch.")
    return _made(kind, outs, ins, _placed(_padded(kept, ins), rounded), rounded=rounded)


def pack_int8(matrix: torch.Tensor, rounded: bool = False) -> PackedMatrix:
    """Round each row to 8 bits with a scale of its own, symmetric (weight-only)."""
    outs, ins = matrix.shape
    rows = _padded(matrix.float(), ins)
    scales = rows.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / _INT8_TOP
    codes = (rows / scales[:, None]).round_().to(torch.int8)
    return _made("int8", outs, ins, _placed(codes, rounded), scales, rounded)


def pack_blocks(parts: Sequence[StoredBlocks], rounded: bool = False) -> PackedMatrix:
    """Rearrange a file's quantised blocks without loss; the parts' rows one below the other."""
    kind, blocks = parts[0].kind, np.concatenate([part.blocks for part in parts])
    outs, count = blocks.shape[:2]
    padding = -outs % LANES
    if padding:
        blocks = np.concatenate([blocks, np.zeros((padding, *blocks.shape[1:]), np.uint8)])
    lanes = blocks.reshape(-1, LANES, count, blocks.shape[2]).transpose(0, 2, 1, 3)
    halves = 4 if kind == "q4_1" else 2
    scales = np.ascontiguousarray(lanes[..., :halves]).view(np.uint16).swapaxes(2, 3)
    codes = lanes[..., halves:]
    if kind != "q8_0":
        placed = _short_words(codes) if rounded else _words(codes)
    else:
        placed = codes if rounded else codes.swapaxes(2, 3)
    parts_of_panel = [np.ascontiguousarray(part) for part in (scales, placed)]
    flat = [part.view(np.uint8).reshape(*part.shape[:2], -1) for part in parts_of_panel]
    panels = torch.from_numpy(np.concatenate(flat, axis=2))
    return _made(kind, outs, count * BLOCK, panels, rounded=rounded)


def _placed(rows: torch.Tensor, rounded: bool) -> torch.Tensor:
    """Whole panels and blocks of rows as [panel, block, bytes]: lane by lane of each column, or
    row by row."""
    blocks = rows.view(-1, LANES, rows.shape[1] // BLOCK, BLOCK)
    panels = blocks.permute(0, 2, 1, 3) if rounded else blocks.permute(0, 2, 3, 1)
    return panels.contiguous().view(torch.uint8)


def _short_words(codes: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """[panel, block, lane, 16] bytes, low halves first, to [panel, block, lane, 8] words: word i
    has the columns i, i + 8, i + 16, i + 24 from its lowest four bits on."""
    low, high = codes & 15, codes >> 4
    quarters = (low[..., :8], low[..., 8:], high[..., :8], high[..., 8:])
    words = np.zeros(quarters[0].shape, np.uint16)
    for place, quarter in enumerate(quarters):
        words |= quarter.astype(np.uint16) << np.uint16(4 * place)
    return words


def _words(codes: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """[panel, block, lane, 16] bytes, low halves first, to [panel, block, 4, lane] words of
    eight neighbouring columns each, the even ones in the lower half."""
    columns = np.concatenate([codes & 15, codes >> 4], axis=3).astype(np.uint32)
    eights = columns.reshape(*codes.shape[:3], 4, 8)
    words = np.zeros(eights.shape[:4], np.uint32)
    for place in range(8):
        words |= eights[..., place] << np.uint32(place // 2 * 4 + place % 2 * 16)
    return words.swapaxes(2, 3)


def _blocks(ins: int) -> int:
    return -(-ins // BLOCK)


def _padded(matrix: torch.Tensor, ins: int) -> torch.Tensor:
    """Zeros up to whole panels and blocks."""
    bottom, right = -len(matrix) % LANES, -ins % BLOCK
    return torch.nn.functional.pad(matrix, (0, right, 0, bottom)) if bottom or right else matrix


def _made(
    kind: str,
    outs: int,
    ins: int,
    panels: torch.Tensor,
    scales: torch.Tensor | None = None,
    rounded: bool = False,
) -> PackedMatrix:
    scales = torch.empty(0) if scales is None else scales.contiguous()
    struct = WeightStruct(
        panels.data_ptr(), scales.data_ptr() or 0, KINDS[kind], outs, ins, rounded
    )
    return PackedMatrix(kind, outs, ins, panels, scales, struct, rounded)
