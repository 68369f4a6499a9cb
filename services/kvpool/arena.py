"""Pages in host memory: one buffer, equal pages, nothing about what they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from shared.errors import StartupError
from shared.ids import PageId


class HostArena:
    """Implements PageMemory. The system backs a page only once it was written."""

    def __init__(self, host_bytes: int, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._pages = host_bytes // page_bytes
        if self._pages < 1:
            raise StartupError(f"host_bytes is below one page ({page_bytes} bytes): raise it")
        try:
            self._buffer = np.empty(self._pages * page_bytes, dtype=np.uint8)
        except MemoryError:
            raise StartupError(f"the system has no {host_bytes} bytes: lower host_bytes") from None

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    @property
    def pages(self) -> int:
        return self._pages

    def run(self, first: PageId, count: int) -> NDArray[np.uint8]:
        """A writable view of neighbouring pages."""
        if first < 0 or count < 1 or first + count > self._pages:
            raise IndexError(f"pages {first}+{count} are not in an arena of {self._pages}")
        return self._buffer[first * self._page_bytes : (first + count) * self._page_bytes]

    def checksums(self, pages: Sequence[PageId]) -> tuple[int, ...]:
        """xxh3-64 of each whole page. Long: call it off the event loop (it frees the GIL)."""
        return tuple(xxhash.xxh3_64_intdigest(self.run(page, 1).data) for page in pages)
