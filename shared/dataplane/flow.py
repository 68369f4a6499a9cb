"""How much may be on its way at once, and whose turn it is: credit and fairness between reads.

A read travels in portions. Per link they are bounded in number and bytes, per process in bytes;
tickets (each stands for one request) take turns, so a small read never waits for a large one.
Pure: knows runs of pages, no sockets and no clock.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from shared.dataplane.runs import Run

Owner = TypeVar("Owner")


class Portion(NamedTuple):
    """What is asked for in one message."""

    runs: tuple[Run, ...]
    size_bytes: int


def room(page_bytes: int, most_bytes: int, most_pages: int) -> int:
    """Pages in a portion of at most so many bytes, but always one, and so many pages."""
    return max(1, min(most_pages, most_bytes // page_bytes))


def portions(runs: Sequence[Run], page_bytes: int, room: int) -> tuple[Portion, ...]:
    """Cut a read into portions of `room` pages."""
    total = sum([len(run.generations) for run in runs])
    if 0 < total <= room:
        return (Portion(tuple(runs), total * page_bytes),)
    cut: list[Portion] = []
    taken: list[Run] = []
    pages = 0
    for run in runs:
        rest = run
        while pages + rest.pages >= room:
            head, tail = rest.split(room - pages)
            cut.append(Portion((*taken, head), room * page_bytes))
            taken, pages = [], 0
            if tail is None:
                break
            rest = tail
        else:
            taken.append(rest)
            pages += rest.pages
    if taken:
        cut.append(Portion(tuple(taken), pages * page_bytes))
    return tuple(cut)


TAKEN_BYTES, LIMIT_BYTES = range(2)
"""Places in `Budget.counts`; native/direct.h counts there too."""


class Budget:
    """Bytes that all links of a process together may have on their way."""

    def __init__(self, limit_bytes: int) -> None:
        self.counts = array("q", (0, limit_bytes))
        self.waiting: OrderedDict[Callable[[], None], None] = OrderedDict()

    @property
    def taken_bytes(self) -> int:
        return self.counts[TAKEN_BYTES]

    def take(self, size_bytes: int, retry: Callable[[], None]) -> bool:
        """False: not now, and `retry` is called once when bytes were given back. What is larger
        than the limit goes alone."""
        taken_bytes, limit_bytes = self.counts
        if taken_bytes and taken_bytes + size_bytes > limit_bytes:
            self.waiting[retry] = None
            return False
        self.counts[TAKEN_BYTES] = taken_bytes + size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        self.counts[TAKEN_BYTES] -= size_bytes
        if self.waiting:
            waiting = tuple(self.waiting)
            self.waiting.clear()
            for retry in waiting:
                retry()

    def forget(self, retry: Callable[[], None]) -> None:
        self.waiting.pop(retry, None)


SLOTS, FLYING, FLYING_BYTES, WINDOW_BYTES = range(4)
"""Places in `Turns.counts`; native/direct.h counts there too."""


class Turns(Generic[Owner]):
    """The portions that wait on one link. `resume` is called when credit came back."""

    def __init__(self, budget: Budget, window_bytes: int, resume: Callable[[], None]) -> None:
        self._budget = budget
        self._resume = resume
        self.queues: OrderedDict[str, deque[tuple[Owner, Portion]]] = OrderedDict()
        self.counts = array("q", (1, 0, 0, window_bytes))

    @property
    def flying(self) -> int:
        """Portions on their way."""
        return self.counts[FLYING]

    @property
    def flying_bytes(self) -> int:
        return self.counts[FLYING_BYTES]

    @property
    def slots(self) -> int:
        """Portions that the peer takes at one time."""
        return self.counts[SLOTS]

    @slots.setter
    def slots(self, slots: int) -> None:
        self.counts[SLOTS] = slots

    def add(self, ticket: str, owner: Owner, waiting: Sequence[Portion]) -> None:
        queue = self.queues.get(ticket)
        if queue is None:
            queue = self.queues[ticket] = deque()
        for portion in waiting:
            queue.append((owner, portion))

    def enter(self, portion: Portion) -> bool:
        """As `add` and `next` for what may go at once. False: it has to wait."""
        return not self.queues and self._take(portion.size_bytes)

    @property
    def waits(self) -> bool:
        """Whether a portion waits for its turn."""
        return bool(self.queues)

    def next(self) -> tuple[Owner, Portion] | None:
        """The next portion that may go, now on its way; None while there is none or no credit."""
        queues = self.queues
        if not queues:
            return None
        ticket = next(iter(queues))
        queue = queues[ticket]
        if not self._take(queue[0][1].size_bytes):
            return None
        turn = queue.popleft()
        if queue:
            queues.move_to_end(ticket)
        else:
            del queues[ticket]
        return turn

    def _take(self, size_bytes: int) -> bool:
        """Whether there was credit for one more."""
        slots, flying, flying_bytes, window_bytes = self.counts
        if flying and (flying >= slots or flying_bytes + size_bytes > window_bytes):
            return False
        if not self._budget.take(size_bytes, self._resume):
            return False
        self.counts[FLYING] += 1
        self.counts[FLYING_BYTES] += size_bytes
        return True

    def ended(self, portion: Portion) -> None:
        """Nothing of this portion is on its way any more."""
        self.counts[FLYING] -= 1
        self.counts[FLYING_BYTES] -= portion.size_bytes
        self._budget.give(portion.size_bytes)

    def drop(self, ticket: str, owner: Owner) -> int:
        """The owner wants nothing more of what still waits: how many portions that were."""
        queue = self.queues.pop(ticket, deque())
        left = deque(entry for entry in queue if entry[0] is not owner)
        if left:
            self.queues[ticket] = left
        return len(queue) - len(left)

    def close(self) -> None:
        """Give everything back."""
        self.queues.clear()
        self._budget.forget(self._resume)
        size_bytes = self.flying_bytes
        self.counts[FLYING] = self.counts[FLYING_BYTES] = 0
        self._budget.give(size_bytes)
