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
from shared.engine.host_pages import HostPages
from shared.errors import Code, EngineError, TransferError
from shared.ids import PageId
from shared.kv.layout import PageLayout

_MODULUS = 1 << 64
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
        if any(isinstance(part, DevicePages) for part in self.parts):
            raise TransferError(
                "pages on a GPU move between equal numbers of ranks only",
                Code.INCOMPATIBLE_WORKERS,
            )
        return StagedPages(self, parts, HostPages(pages, self.shard(parts).page_bytes))

    def checksums(self, pages: Sequence[PageId], parts: int) -> tuple[int, ...]:
        """Of whole pages as a worker of `parts` ranks announces them: the sum, modulo 2^64, of the
        xxh3-64 of each rank's piece, seeded with the rank. One rank: plain xxh3-64. Raises
        EngineError."""
        if parts == 1 and len(self.parts) == 1:
            return self.parts[0].checksums(pages)
        if any(isinstance(part, DevicePages) for part in self.parts):
            raise EngineError("checksums over several ranks need pages in host memory")
        if any(not 0 <= page < self.pages for page in pages):
            raise EngineError(f"a page id is outside 0..{self.pages - 1}")
        return tuple(self._checksum(page, parts) for page in pages)

    def _checksum(self, page: PageId, parts: int) -> int:
        pieces = (self._piece(page, part, parts) for part in range(parts))
        sums = (xxhash.xxh3_64_intdigest(piece.data, part) for part, piece in enumerate(pieces))
        return sum(sums) % _MODULUS

    def _piece(self, page: PageId, part: int, parts: int) -> NDArray[np.uint8]:
        """What rank `part` of `parts` would hold of one page."""
        whole = self.parts[part] if parts == len(self.parts) else None
        if isinstance(whole, HostPages):
            stored: NDArray[np.uint8] = whole.bytes[page]
            return stored
        shape = _cells_shape(self.shard(parts))
        piece = np.empty(shape, np.uint8)
        for own, theirs, cells in self.overlaps(part, parts):
            piece[:, theirs] = cells[page, :, own]
        return piece

    def overlaps(self, part: int, parts: int) -> list[tuple[slice, slice, NDArray[np.uint8]]]:
        """For each own piece that shares heads with `part` of `parts`: the heads in ours, in
        theirs, and our bytes, [page, layer * k|v, kv_head, byte]."""
        own_layout = self.shard(len(self.parts))
        ours, theirs = own_layout.kv_heads, self.shard(parts).kv_heads
        found = []
        for index, memory in enumerate(self.parts):
            low, high = (
                max(index * ours, part * theirs),
                min((index + 1) * ours, (part + 1) * theirs),
            )
            if low < high and isinstance(memory, HostPages):
                own = slice(low - index * ours, high - index * ours)
                other = slice(low - part * theirs, high - part * theirs)
                found.append((own, other, _cells(memory, own_layout)))
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
        source = _cells(self._memory, self._home.shard(self._parts))
        slots, targets = [slot for slot, _ in moves], [target for _, target in moves]
        for own, theirs, cells in self._home.overlaps(part, self._parts):
            cells[targets, :, own] = source[slots, :, theirs]


def _cells_shape(layout: PageLayout) -> tuple[int, int, int]:
    rows = layout.layers * 2
    return rows, layout.kv_heads, layout.page_bytes // (rows * layout.kv_heads)


def _cells(memory: HostPages, layout: PageLayout) -> NDArray[np.uint8]:
    """[page, layer * k|v, kv_head, bytes of one head]"""
    return memory.bytes.reshape(memory.pages, *_cells_shape(layout))
