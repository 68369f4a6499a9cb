"""Bugs that stacks like ours have shipped, put into our cores by patching. Each must be found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.decode.core.events import PagesArrived
from services.decode.core.inbox import Inbox
from services.decode.core.pulls import Pulls
from services.decode.core.sequences import Sequence as Sequenced
from shared.ids import Generation, PageId
from shared.kv.blocks import Hold
from shared.kv.leases import LeaseBook


def free_before_drain(patch: pytest.MonkeyPatch) -> None:
    """Decode gives pages back at the end of an attempt although a read still writes them."""

    def abandon(pulls: Pulls, sequence: Sequenced) -> list[PageId]:
        for pull in list(pulls):
            if pull.sequence is sequence and pull.verify_s is None:
                pull.orphan = True
            elif pull.sequence is sequence:
                pulls.remove(pull.number)
        return []

    patch.setattr(Pulls, "abandon", abandon)


def generation_check_off(patch: pytest.MonkeyPatch) -> None:
    """An owner serves a page by its id alone, whatever became of it since it was announced."""

    def open_read(
        book: LeaseBook, ticket: str, pages: Sequence[tuple[PageId, Generation]], now: float
    ) -> int:
        opened = tuple(book._table[page] for page in dict(pages))
        for page in opened:
            book._table.hold(page, Hold.READ)
        book._last_read += 1
        book._reads[book._last_read] = opened
        return book._last_read

    patch.setattr(LeaseBook, "open_read", open_read)


def double_commit(patch: pytest.MonkeyPatch) -> None:
    """Decode forgets that it has committed when an announcement arrives again."""
    arrived = Inbox.pages_arrived

    def pages_arrived(inbox: Inbox, event: PagesArrived, now: float) -> None:
        sequence = inbox._desk.find(event.ready.request, event.ready.attempt)
        if sequence is not None and sequence.handoff is not None:
            sequence.handoff.committed = False
        arrived(inbox, event, now)

    patch.setattr(Inbox, "pages_arrived", pages_arrived)
