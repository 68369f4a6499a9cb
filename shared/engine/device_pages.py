"""Page memory on a CUDA device; checksums and heads on the move go through host memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from shared.engine.head_runs import HeadRun
from shared.errors import EngineError
from shared.ids import PageId

_STAGED_PAGES: Final = 32


class DevicePages:
    """Equal pages of raw bytes in one device allocation."""

    def __init__(self, memory: torch.Tensor) -> None:
        """`memory`: bytes, [page, byte], contiguous."""
        self.bytes = memory
        shape, pinned = (_STAGED_PAGES, memory.shape[1]), memory.is_cuda
        self._stage = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)

    @classmethod
    def allocated(cls, pages: int, page_bytes: int, device: torch.device) -> DevicePages:
        return cls(torch.zeros((pages, page_bytes), dtype=torch.uint8, device=device))

    @property
    def page_bytes(self) -> int:
        return self.bytes.shape[1]

    @property
    def pages(self) -> int:
        return self.bytes.shape[0]

    def run(self, first: PageId, count: int) -> torch.Tensor:
        """Contiguous bytes of neighbouring pages with `__cuda_array_interface__`; no copy."""
        if first < 0 or count < 1 or first + count > self.pages:
            raise EngineError(f"pages {first}..{first + count - 1} of {self.pages}")
        return self.bytes[first : first + count].view(-1)

    def checksums(self, pages: Sequence[PageId], seed: int = 0) -> tuple[int, ...]:
        """Seeded xxh3-64 of each page, as it is now."""
        self._check(pages)
        sums: list[int] = []
        for first in range(0, len(pages), _STAGED_PAGES):
            wanted = torch.tensor(pages[first : first + _STAGED_PAGES], device=self.bytes.device)
            stage = self._stage[: len(wanted)]
            stage.copy_(self.bytes.index_select(0, wanted), non_blocking=True)
            self._settle()
            sums.extend(xxhash.xxh3_64_intdigest(page.numpy().data, seed) for page in stage)
        return tuple(sums)

    def take(self, pages: Sequence[PageId], heads: HeadRun) -> NDArray[np.uint8]:
        """A copy of some heads in host memory, [page, layer * k|v, head, byte]."""
        from kernels.dispatch import gather_pages

        cells, ids = self._cells(heads), self._ids(pages)
        with self._current():
            taken = gather_pages(cells, ids, first_head=heads.first, heads=heads.count)
        shape = (len(pages), heads.rows, heads.count, heads.head_bytes)
        found: NDArray[np.uint8] = taken.cpu().numpy().view(np.uint8).reshape(shape)
        return found

    def put(self, pages: Sequence[PageId], heads: HeadRun, cells: NDArray[np.uint8]) -> None:
        """The inverse, into distinct pages; they are complete when this returns."""
        from kernels.dispatch import scatter_pages

        target = self._cells(heads)
        shape = (len(pages), *target.shape[1:3], heads.count, *target.shape[4:])
        staged = torch.from_numpy(np.ascontiguousarray(cells)).view(-1).view(target.dtype)
        staged = staged.to(self.bytes.device).view(shape)
        with self._current():
            scatter_pages(staged, target, self._ids(pages), first_head=heads.first)
        self._settle()

    def _cells(self, heads: HeadRun) -> torch.Tensor:
        """[page, layer, k|v, kv_head, 1, words of a head]: what is moved is never a number."""
        word = torch.int64 if heads.head_bytes % 8 == 0 else torch.uint8
        layout = heads.layout
        return self.bytes.view(word).view(self.pages, layout.layers, 2, layout.kv_heads, 1, -1)

    def _ids(self, pages: Sequence[PageId]) -> torch.Tensor:
        self._check(pages)
        return torch.tensor(list(pages), dtype=torch.int32, device=self.bytes.device)

    def _check(self, pages: Sequence[PageId]) -> None:
        if any(not 0 <= page < self.pages for page in pages):
            raise EngineError(f"a page id is outside 0..{self.pages - 1}")

    def _current(self) -> AbstractContextManager[object]:
        """Kernels are launched on the thread's current device."""
        return torch.cuda.device(self.bytes.device) if self.bytes.is_cuda else nullcontext()

    def _settle(self) -> None:
        if self.bytes.is_cuda:
            torch.cuda.current_stream(self.bytes.device).synchronize()
