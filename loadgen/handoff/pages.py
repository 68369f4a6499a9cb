"""The memory of the raw transfers: a pattern on the owner's side, zeros on the reader's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shared.ids import Generation, PageId

REGION_BYTES: Final = 64 << 20
PAGE_BYTES: Final = 64 << 10
TICKET: Final = "bench"

Bytes = NDArray[np.uint8]


def pattern() -> Bytes:
    """Content that differs everywhere."""
    words = np.arange(REGION_BYTES // 4, dtype=np.uint32) * np.uint32(2654435761)
    return words.view(np.uint8)


class BenchPages:
    """Implements PageMemory over one array."""

    page_bytes = PAGE_BYTES
    pages = REGION_BYTES // PAGE_BYTES

    def __init__(self, array: Bytes) -> None:
        self._array = array

    def run(self, first: PageId, count: int) -> Any:
        return self._array[first * PAGE_BYTES : (first + count) * PAGE_BYTES]


class BenchGuard:
    """Implements ReadGuard: everything may be read with TICKET."""

    def __init__(self) -> None:
        self._reads = 0

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        self._reads += 1
        return self._reads if ticket == TICKET else None

    def close_read(self, read: int) -> None:
        """Nothing is evicted here."""
