"""Page memory in host RAM: one mapping, page-aligned, zero until first touched."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from shared.engine.head_runs import HeadRun
from shared.errors import EngineError
from shared.ids import PageId


class HostPages:
    """Equal pages of raw bytes. Engines view them in their own shape and dtype."""

    def __init__(self, pages: int, page_bytes: int, file: int | None = None) -> None:
        """`file`: of an open file of that size, for pages that two processes share."""
        try:
            mapping = mmap.mmap(-1 if file is None else file, pages * page_bytes)
        except (OSError, ValueError, OverflowError) as error:
            raise EngineError(f"cannot map {pages} pages of {page_bytes} bytes") from error
        self.bytes: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8).reshape(pages, page_bytes)

    @property
    def page_bytes(self) -> int:
        return int(self.bytes.shape[1])

    @property
    def pages(self) -> int:
        return int(self.bytes.shape[0])

    def run(self, first: PageId, count: int) -> NDArray[np.uint8]:
        """Writable, contiguous bytes of `count` neighbouring pages; no copy."""
        if first < 0 or count < 1 or first + count > self.pages:
            raise EngineError(f"pages {first}..{first + count - 1} of {self.pages}")
        return self.bytes[first : first + count].reshape(-1)

    def checksums(self, pages: Sequence[PageId], seed: int = 0) -> tuple[int, ...]:
        """Seeded xxh3-64 of each page, as it is now."""
        if any(not 0 <= page < self.pages for page in pages):
            raise EngineError(f"a page id is outside 0..{self.pages - 1}")
        return tuple(xxhash.xxh3_64_intdigest(self.bytes[page].data, seed) for page in pages)

    def take(self, pages: Sequence[PageId], heads: HeadRun) -> NDArray[np.uint8]:
        """A copy of some heads, [page, layer * k|v, head, byte]."""
        return self._cells(heads)[list(pages), :, heads.first : heads.first + heads.count]

    def put(self, pages: Sequence[PageId], heads: HeadRun, cells: NDArray[np.uint8]) -> None:
        """The inverse, into distinct pages."""
        self._cells(heads)[list(pages), :, heads.first : heads.first + heads.count] = cells

    def _cells(self, heads: HeadRun) -> NDArray[np.uint8]:
        shape = (heads.rows, heads.layout.kv_heads, heads.head_bytes)
        return self.bytes.reshape(self.pages, *shape)
