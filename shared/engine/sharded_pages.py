"""One worker's pages as its ranks hold them, and the same pages in the geometry of other workers.

part r of n holds KV heads [r * heads / n, (r + 1) * heads / n) of every page, so the ranges of any
two numbers of ranks overlap in runs of heads, contiguous for each (layer, keys or values).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from shared.engine.device_pages import DevicePages
from shared.engine.head_runs import HeadRun
from shared.engine.host_pages import HostPages
from shared.errors import Code, EngineError, TransferError
from shared.ids import PageId
from shared.kv.layout import PageLayout

_MODULUS = 1 << 64
_TOGETHER = 16
"""Pages that are cut anew at a time."""
Part = HostPages | DevicePages


class ShardedPages:
    """Implements `SplitMemory`. Rank 0 sees the memory of all ranks; page ids mean the same in
    each of them."""

    def __init__(self, layout: PageLayout, parts: Sequence[Part]) -> None:
        """`layout` is the whole model's."""
        self._layout = layout
        self.parts = tuple(parts)

    @property
    def page_bytes(self) -> int:
        """Of a whole page."""
        return self._layout.page_bytes

    @property
    def pages(self) -> int:
        return self.parts[0].pages

    def run(self, first: PageId, count: int) -> NDArray[np.uint8]:
        """Refused where a page is in several pieces: read those of `parts`."""
        if len(self.parts) > 1:
            raise EngineError("the pages of several ranks are not one region")
        return self.parts[0].run(first, count)  # type: ignore[return-value]

    def staging(self, parts: int, pages: int) -> StagedPages:
        """Memory for pages as one of `parts` ranks holds them. Raises TransferError."""
        return StagedPages(self, parts, HostPages(pages, self.shard(parts).page_bytes))

    def checksums(self, pages: Sequence[PageId], parts: int) -> tuple[int, ...]:
        """Of whole pages as a worker of `parts` ranks announces them: the sum, modulo 2^64, of the
        xxh3-64 of each rank's piece, seeded with the rank. One rank: plain xxh3-64. Raises
        EngineError."""
        if parts == len(self.parts):
            columns = [memory.checksums(pages, part) for part, memory in enumerate(self.parts)]
        else:
            columns = [self._recut(pages, part, parts) for part in range(parts)]
        return tuple(sum(column) % _MODULUS for column in zip(*columns, strict=True))

    def _recut(self, pages: Sequence[PageId], part: int, parts: int) -> tuple[int, ...]:
        """Seeded xxh3-64 of what rank `part` of `parts` would hold of each page."""
        if any(not 0 <= page < self.pages for page in pages):
            raise EngineError(f"a page id is outside 0..{self.pages - 1}")
        layout, sums = self.shard(parts), []
        whole = HeadRun(layout, 0, layout.kv_heads)
        for first in range(0, len(pages), _TOGETHER):
            some = pages[first : first + _TOGETHER]
            shape = (len(some), whole.rows, whole.count, whole.head_bytes)
            piece = np.empty(shape, np.uint8)
            for memory, own, theirs in self.overlaps(part, parts):
                piece[:, :, theirs] = memory.take(some, own)
            sums += [xxhash.xxh3_64_intdigest(one.data, part) for one in piece]
        return tuple(sums)

    def overlaps(self, part: int, parts: int) -> list[tuple[Part, HeadRun, slice]]:
        """Each own piece that shares heads with `part` of `parts`, and the heads: in ours, and in
        theirs."""
        own_layout = self.shard(len(self.parts))
        ours, theirs = own_layout.kv_heads, self.shard(parts).kv_heads
        found = []
        for index, memory in enumerate(self.parts):
            low, high = (
                max(index * ours, part * theirs),
                min((index + 1) * ours, (part + 1) * theirs),
            )
            if low < high:
                own = HeadRun(own_layout, low - index * ours, high - low)
                found.append((memory, own, slice(low - part * theirs, high - part * theirs)))
        return found

    def shard(self, parts: int) -> PageLayout:
        """Raises TransferError when the heads do not divide."""
        try:
            return self._layout.shard(parts)
        except ValueError as error:
            raise TransferError(str(error), Code.INCOMPATIBLE_WORKERS) from error


class StagedPages:
    """Implements `StagedMemory`: pieces as one of `parts` ranks holds them."""

    def __init__(self, home: ShardedPages, parts: int, memory: HostPages) -> None:
        self._home = home
        self._parts = parts
        self._memory = memory

    @property
    def page_bytes(self) -> int:
        return self._memory.page_bytes

    @property
    def pages(self) -> int:
        return self._memory.pages

    def run(self, first: PageId, count: int) -> NDArray[np.uint8]:
        return self._memory.run(first, count)

    def adopt(self, part: int, moves: Sequence[tuple[PageId, PageId]]) -> None:
        layout = self._home.shard(self._parts)
        slots, targets = [slot for slot, _ in moves], [target for _, target in moves]
        cells = self._memory.take(slots, HeadRun(layout, 0, layout.kv_heads))
        for memory, own, theirs in self._home.overlaps(part, self._parts):
            memory.put(targets, own, cells[:, :, theirs])
