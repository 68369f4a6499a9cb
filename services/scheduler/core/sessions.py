"""Where the requests of a session went: the next one finds its blocks there.

A preference, never a rule: it enters scores as a discount. Knows names only.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeVar

from shared.ids import WorkerId

TTL_S: Final = 900.0
_MOST: Final = 65_536
_PERSON: Final = b"baton-session"

Session = tuple[str, str]
"""Tenant and affinity key."""
Item = TypeVar("Item")


class Sessions:
    """Session -> worker that computed its last prompt."""

    def __init__(self) -> None:
        self._last: OrderedDict[Session, tuple[WorkerId, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def remember(self, session: Session, worker: WorkerId, now: float) -> None:
        """Its prompt is computed there now."""
        if session[1]:
            self._last[session] = worker, now + TTL_S
            self._last.move_to_end(session)
            if len(self._last) > _MOST:
                self._last.popitem(last=False)

    def last(self, session: Session, now: float) -> WorkerId | None:
        """Where the last one went, if that was not too long ago."""
        found = self._last.get(session)
        return found[0] if found is not None and found[1] > now else None


def rendezvous(session: Session, workers: Sequence[WorkerId]) -> WorkerId | None:
    """The worker with the highest hash together with the session: stable when others come and
    go (highest random weight)."""
    return max(workers, key=lambda worker: stable(*session, worker), default=None)


def stable(*parts: str) -> int:
    """The same number in every process."""
    digest = hashlib.blake2b(digest_size=8, person=_PERSON)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return int.from_bytes(digest.digest(), "little")
