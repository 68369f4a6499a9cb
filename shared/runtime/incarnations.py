"""Which incarnation of each peer speaks, as far as one who only listens can tell.

A peer's older incarnation is refused: it is dead, and its messages are late copies (I9).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from shared.ids import Epoch, WorkerId
from shared.runtime.leader import Leader

_PEERS: Final = 1024


class Incarnations:
    """The newest epoch heard of each peer. As short a memory as `Leader` has."""

    def __init__(self) -> None:
        self._newest: OrderedDict[WorkerId, Leader] = OrderedDict()

    def outdated(self, peer: WorkerId, epoch: int | None, now: float) -> bool:
        """Whether a newer incarnation has spoken lately. Who names no epoch speaks before it has
        one, and is older than everyone who has."""
        newest = self._newest.setdefault(peer, Leader())
        self._newest.move_to_end(peer)
        while len(self._newest) > _PEERS:
            self._newest.popitem(last=False)
        return not newest.accepts(Epoch(epoch or 0), now)

    def replaced(self, peer: WorkerId, epoch: Epoch, now: float) -> None:
        """A newer incarnation than this one is there, though it has not spoken here."""
        self.outdated(peer, epoch + 1, now)
