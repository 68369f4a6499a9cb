"""The model's operations through the compiled library: float32 rows, weights as they are stored.

A row's result is the same bits whatever is computed beside it, in whatever chunks, on however
many threads: every sum has one fixed order.
"""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as functional

from shared.engine.native.packing import KINDS, PackedMatrix
from shared.engine.paged_kv import PagedKv
from shared.engine.rope import Turn


class _Store(ctypes.Structure):
    """`Store` in elements.c."""

    _fields_ = (
        ("cells", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("kind", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("head_cells", ctypes.c_int64),
        ("layer_cells", ctypes.c_int64),
    )


class NativeOperations:
    """Implements Operations. Set torch's threads before."""

    def __init__(self, library: ctypes.CDLL, kv: PagedKv) -> None:
        self.library = library
        self._kv = kv
        # Said with each call: what the OpenMP runtime remembers is of the thread that set it.
        self.threads = torch.get_num_threads()
        layout = kv.layout
        self._store = _Store(
            cells=kv.cells.data_ptr(),
            kind=KINDS[layout.dtype],
            kv_heads=layout.kv_heads,
            head_dim=layout.head_dim,
            head_cells=layout.block_tokens * layout.head_dim,
            layer_cells=2 * layout.kv_heads * layout.block_tokens * layout.head_dim,
        )
        self._store_address = ctypes.addressof(self._store)
        self._placed: tuple[torch.Tensor, torch.Tensor] | None = None

    def embed(self, tokens: torch.Tensor, table: torch.Tensor | PackedMatrix) -> torch.Tensor:
        packed = _packed(table)
        out = torch.empty(len(tokens), packed.ins)
        self.library.baton_rows(
            packed.address, tokens.data_ptr(), out.data_ptr(), len(tokens), self.threads
        )
        return out

    def norm(self, rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        if not rows.is_contiguous():
            return functional.rms_norm(rows, weight.shape, weight, epsilon)
        out = torch.empty_like(rows)
        width = rows.shape[-1]
        self.library.baton_norm(
            rows.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            rows.numel() // width,
            width,
            epsilon,
            self.threads,
        )
        return out

    def add_norm(
        self, part: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = hidden + part
        return hidden, self.norm(hidden, weight, epsilon)

    def project(
        self,
        rows: torch.Tensor,
        matrix: torch.Tensor | PackedMatrix,
        onto: torch.Tensor | None = None,
    ) -> torch.Tensor:
        packed = _packed(matrix)
        out = torch.empty(len(rows), packed.outs) if onto is None else onto
        self.library.baton_linear(
            packed.address,
            rows.data_ptr(),
            out.data_ptr(),
            len(rows),
            onto is not None,
            self.threads,
        )
        return out

    def turn_and_store(
        self, layer: int, heads: torch.Tensor, turn: Turn, new_rows: torch.Tensor
    ) -> None:
        self.library.baton_turn(
            self.store_of(new_rows, heads.shape[1] - 2 * self._kv.layout.kv_heads),
            layer,
            heads.data_ptr(),
            turn[0].data_ptr(),
            turn[1].data_ptr(),
            len(heads),
            self.threads,
        )

    def silu_gate(self, both: torch.Tensor) -> torch.Tensor:
        width = both.shape[1] // 2
        out = torch.empty(len(both), width)
        self.library.baton_gate(both.data_ptr(), out.data_ptr(), len(both), width, self.threads)
        return out

    def store_of(self, new_rows: torch.Tensor, heads: int) -> int:
        """Address of what says where a step's keys and values go, until the next call; the same
        places for all layers of a step."""
        if self._placed is None or self._placed[0] is not new_rows:
            rows = new_rows.view(-1, self._kv.layer_strips)[:, 0]
            self._placed = new_rows, rows * self._kv.layout.head_dim
            self._store.places = self._placed[1].data_ptr()
        self._store.heads = heads
        return self._store_address


def _packed(matrix: torch.Tensor | PackedMatrix) -> PackedMatrix:
    if isinstance(matrix, PackedMatrix):
        return matrix
    raise TypeError("the library multiplies packed weights only")
