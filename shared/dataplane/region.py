"""Where the pages of a process lie, as a transport library names it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shared.dataplane.plane import PageMemory
from shared.ids import PageId

_FIRST_PAGE: Final = PageId(0)


class Region:
    """The addresses of all pages, found once. Keeps their memory alive."""

    def __init__(self, memory: PageMemory) -> None:
        self.page_bytes = memory.page_bytes
        self.pages = memory.pages
        self._view: Any = memory.run(_FIRST_PAGE, self.pages)
        described = getattr(self._view, "__cuda_array_interface__", None)
        self.on_device = described is not None
        self.address = int(
            np.asarray(self._view).ctypes.data if described is None else described["data"][0]
        )

    def at(self, first: int, pages: int) -> int:
        """Where these pages begin. Raises IndexError for pages that are not ours."""
        if first < 0 or pages < 1 or first + pages > self.pages:
            raise IndexError(f"pages {first}+{pages} of {self.pages}")
        return self.address + first * self.page_bytes
