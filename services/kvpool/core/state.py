"""What the parts of a pool node's machine share: pages, limits, counts, diary, and the actions
that the current event has brought about so far.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.kvpool.core.actions import Action, Answer, Reply, Traced
from shared.errors import Code
from shared.ids import Epoch, WorkerId
from shared.kv.cache import PageCache
from shared.wire.requests import Refused, WorkerRef

_STORIES: Final = 512
_STORY_LINES: Final = 64
_PEERS: Final = 1024


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Sizes and times that bound everything the machine keeps."""

    layout_digest: str
    lease_s: float
    """How long a reader has for the blocks that it looked up."""
    waiting_offers: int = 64
    running_offers: int = 4
    pull_pages: int = 64
    """Most pages in one read; a longer offer takes several."""
    pull_timeout_s: float = 10.0
    leases: int = 4096


class Diary:
    """The latest lives of offers and lookups by ticket: bounded in tickets and lines."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, list[str]] = OrderedDict()

    def note(self, ticket: str, now: float, text: str) -> None:
        lines = self._lines.setdefault(ticket, [])
        if len(lines) < _STORY_LINES:
            lines.append(f"{now:.3f}: {text}")
        while len(self._lines) > _STORIES:
            self._lines.popitem(last=False)

    def story(self, ticket: str) -> str:
        return "\n".join(self._lines.get(ticket, ["unknown here"]))


class PoolState:
    """The common ground of `Storing` and `Lending`."""

    def __init__(self, owner: WorkerRef, cache: PageCache, limits: PoolLimits) -> None:
        self.owner = owner
        self.cache = cache
        self.limits = limits
        self.counts: Counter[str] = Counter()
        """What happened since the start, by name; only grows."""
        self.diary = Diary()
        self.draining = False
        self.out: list[Action] = []
        self._epochs: OrderedDict[WorkerId, Epoch] = OrderedDict()

    def fenced(self, peer: WorkerRef) -> bool:
        """Whether a newer incarnation of this worker has spoken before."""
        newest = self._epochs.pop(peer.worker, peer.epoch)
        self._epochs[peer.worker] = max(newest, peer.epoch)
        while len(self._epochs) > _PEERS:
            self._epochs.popitem(last=False)
        self.counts["fenced_epoch"] += peer.epoch < newest
        return peer.epoch < newest

    def reply(self, call: int, message: Answer) -> None:
        self.out.append(Reply(call, message))

    def refuse(self, call: int, code: Code, message: str) -> None:
        self.counts[f"refused_{code}"] += 1
        self.reply(call, Refused(code, message))

    def trace(
        self,
        call: int,
        name: str,
        start_s: float,
        end_s: float,
        attributes: Mapping[str, str | int | float | bool],
    ) -> None:
        self.out.append(Traced(call, name, start_s, end_s, attributes))
