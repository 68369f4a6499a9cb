"""Full blocks become findable: named, checksummed, sealed into the prefix cache in order.

A block that waits for its checksum holds its page by a reference of its own, so it is kept
even when its sequence ends first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from services.decode.core.actions import Checksum
from services.decode.core.desk import Desk
from services.decode.core.sequences import Sequence
from shared.ids import BlockHash, PageId
from shared.kv.cache import HeldPage


@dataclass(frozen=True, slots=True)
class _Waiting:
    sequence: Sequence
    position: int
    page: HeldPage
    block: BlockHash
    parent: BlockHash | None


class Sealing:
    """Seals what is complete; asks for the checksums it does not know."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._waiting: dict[int, tuple[_Waiting, ...]] = {}
        self._number = 0

    @property
    def pending(self) -> int:
        return sum(map(len, self._waiting.values()))

    def references(self) -> Counter[PageId]:
        """References that waiting seals hold, for `check`."""
        return Counter(entry.page.page for batch in self._waiting.values() for entry in batch)

    def advance(self, sequences: list[Sequence]) -> None:
        """Seal blocks that became complete. Pulled pages carry a verified checksum; the others
        are checksummed together on the engine thread."""
        batch = [
            entry
            for sequence in sequences
            if sequence.lead_blocks > sequence.sealed
            for entry in self._complete(sequence)
        ]
        if not batch:
            return
        self._number += 1
        self._waiting[self._number] = tuple(batch)
        self._desk.sealing.update(entry.block for entry in batch)
        pages = tuple(entry.page.page for entry in batch)
        self._desk.cache.retain(pages)
        self._desk.out.append(Checksum(self._number, pages))

    def checksummed(self, seal: int, checksums: tuple[int, ...]) -> None:
        batch = self._waiting.pop(seal, None)
        if batch is None:
            self._desk.counts["ignored"] += 1
            return
        self._desk.sealing.difference_update(entry.block for entry in batch)
        if len(checksums) == len(batch):
            for entry, checksum in zip(batch, checksums, strict=True):
                self._seal(entry, checksum)
        else:
            self._desk.counts["seals_failed"] += len(batch)
        self._desk.cache.release([entry.page.page for entry in batch])

    def _complete(self, sequence: Sequence) -> list[_Waiting]:
        """Blocks of one sequence that still need a checksum; some are complete."""
        lead = sequence.lead_blocks
        sequence.name_blocks()
        unknown: list[_Waiting] = []
        for position in range(sequence.sealed, lead):
            page = sequence.pages[position]
            if page is None or page.checksum is not None:
                continue
            names = sequence.names
            parent = names[position - 1] if position else None
            entry = _Waiting(sequence, position, page, names[position], parent)
            checksum = sequence.checksums.pop(position, None)
            if checksum is None:
                unknown.append(entry)
            else:
                self._seal(entry, checksum)
        sequence.sealed = lead
        return unknown

    def _seal(self, entry: _Waiting, checksum: int) -> None:
        sealed = self._desk.cache.seal(entry.page.page, checksum, entry.block, entry.parent)
        pages = entry.sequence.pages
        if entry.position < len(pages) and pages[entry.position] == entry.page:
            entry.sequence.set_page(entry.position, sealed)
