"""Reads a checkpoint's tensors for one rank, in the form that the engine's operations take.

Plain: torch tensors in the engine's dtype. Packed, for the compiled library: vectors in float32,
matrices as the file stores them, in the engine's dtype, or rounded to 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from shared.checkpoint.stored_blocks import BlockSource, StoredBlocks
from shared.checkpoint.tensors import TensorSource
from shared.engine.native.packing import pack_blocks, pack_dense, pack_int8
from shared.engine.operations import Matrix
from shared.engine.team import Team

KEPT: Final = ("stored", "dense", "int8")
"""How packed matrices are kept: quantised ones as stored, all in the dtype, all in 8 bits."""


@dataclass(frozen=True, slots=True)
class TensorReader:
    """Reads a tensor once, keeps this rank's share of it."""

    source: TensorSource
    device: torch.device
    dtype: torch.dtype
    team: Team
    kept: str | None = None
    """One of KEPT; None: plain tensors."""
    rounded: bool = False
    """Packed: products round rows and weights to bfloat16."""

    def vector(self, name: str) -> torch.Tensor:
        """The whole vector."""
        return self._vector(name).to(self.device)

    def vectors(self, *names: str) -> torch.Tensor:
        """This rank's parts of the named vectors, one after the other."""
        return torch.cat([self._share(self._vector(name), 0) for name in names]).to(self.device)

    def table(self, name: str) -> Matrix:
        """The whole matrix."""
        blocks = self._blocks([name])
        return pack_blocks(blocks, self.rounded) if blocks else self._placed(self._matrix(name))

    def rows(self, *names: str) -> Matrix:
        """This rank's rows of the named matrices, one below the other."""
        blocks = self._blocks(names)
        if blocks:
            parts = [self._share(torch.from_numpy(one.blocks), 0).numpy() for one in blocks]
            kind = blocks[0].kind
            return pack_blocks([StoredBlocks(kind, part) for part in parts], self.rounded)
        return self._placed(torch.cat([self._share(self._matrix(name), 0) for name in names]))

    def columns(self, name: str) -> Matrix:
        """This rank's columns."""
        blocks = self._blocks([name])
        if blocks and blocks[0].blocks.shape[1] % self.team.size == 0:
            part = self._share(torch.from_numpy(blocks[0].blocks), 1).contiguous().numpy()
            return pack_blocks([StoredBlocks(blocks[0].kind, part)], self.rounded)
        return self._placed(self._share(self._matrix(name), 1))

    def _vector(self, name: str) -> torch.Tensor:
        found = torch.from_numpy(self.source.read(name))
        return found if self.kept else found.to(self.dtype)

    def _matrix(self, name: str) -> torch.Tensor:
        found = torch.from_numpy(self.source.read(name))
        return found if self.kept == "int8" else found.to(self.dtype)

    def _blocks(self, names: Sequence[str]) -> list[StoredBlocks]:
        """The matrices as stored; empty unless that is wanted, and all are stored alike."""
        if self.kept != "stored" or not isinstance(self.source, BlockSource):
            return []
        found = [self.source.blocks(name) for name in names]
        alike = [one for one in found if one is not None]
        same = len(alike) == len(found) and len({one.kind for one in alike}) == 1
        return alike if same else []

    def _placed(self, matrix: torch.Tensor) -> Matrix:
        if self.kept is None:
            return matrix.contiguous().to(self.device)
        pack = pack_int8 if self.kept == "int8" else pack_dense
        return pack(matrix, self.rounded)

    def _share(self, whole: torch.Tensor, dimension: int) -> torch.Tensor:
        """This rank's equal part; the last rows of an uneven split are one fewer."""
        return whole.tensor_split(self.team.size, dimension)[self.team.rank]
