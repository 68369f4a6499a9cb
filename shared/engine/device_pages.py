"""Page memory on a CUDA device; checksums go through pinned host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import xxhash

from shared.errors import EngineError
from shared.ids import PageId

_STAGED_PAGES: Final = 32


class DevicePages:
    """Equal pages of raw bytes in one device allocation."""

    def __init__(self, pages: int, page_bytes: int, device: torch.device) -> None:
        self.bytes = torch.zeros((pages, page_bytes), dtype=torch.uint8, device=device)
        self._stage = torch.empty((_STAGED_PAGES, page_bytes), dtype=torch.uint8, pin_memory=True)

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

    def checksums(self, pages: Sequence[PageId]) -> tuple[int, ...]:
        """xxh3-64 of each page, as it is now."""
        if any(not 0 <= page < self.pages for page in pages):
            raise EngineError(f"a page id is outside 0..{self.pages - 1}")
        sums: list[int] = []
        for first in range(0, len(pages), _STAGED_PAGES):
            wanted = torch.tensor(pages[first : first + _STAGED_PAGES], device=self.bytes.device)
            stage = self._stage[: len(wanted)]
            stage.copy_(self.bytes.index_select(0, wanted), non_blocking=True)
            torch.cuda.current_stream(self.bytes.device).synchronize()
            sums.extend(xxhash.xxh3_64_intdigest(page.numpy().data) for page in stage)
        return tuple(sums)
