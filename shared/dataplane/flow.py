"""How much may be on its way at once, and whose turn it is: credit and fairness between reads.

A read travels in portions. Per link they are bounded in number and bytes, per process in bytes;
tickets (each stands for one request) take turns, so a small read never waits for a large one.
Pure: knows runs of pages, no sockets and no clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from shared.dataplane.runs import Run

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True)
class Portion:
    """What is asked for in one message."""

    runs: tuple[Run, ...]
    size_bytes: int


def portions(
    runs: Sequence[Run], page_bytes: int, most_bytes: int, most_pages: int
) -> tuple[Portion, ...]:
    """Cut a read into portions of at most so many bytes (but always a page) and pages."""
    room = max(1, min(most_pages, most_bytes // page_bytes))
    total = sum(run.pages for run in runs)
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


class Budget:
    """Bytes that all links of a process together may have on their way."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: OrderedDict[Callable[[], None], None] = OrderedDict()
        self.taken_bytes = 0

    def take(self, size_bytes: int, retry: Callable[[], None]) -> bool:
        """False: not now, and `retry` is called once when bytes were given back. What is larger
        than the limit goes alone."""
        if self.taken_bytes and self.taken_bytes + size_bytes > self._limit_bytes:
            self._waiting[retry] = None
            return False
        self.taken_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        self.taken_bytes -= size_bytes
        waiting, self._waiting = self._waiting, OrderedDict()
        for retry in waiting:
            retry()

    def forget(self, retry: Callable[[], None]) -> None:
        self._waiting.pop(retry, None)


class Turns(Generic[Owner]):
    """The portions that wait on one link. `resume` is called when credit came back."""

    def __init__(self, budget: Budget, window_bytes: int, resume: Callable[[], None]) -> None:
        self._budget = budget
        self._window_bytes = window_bytes
        self._resume = resume
        self._queues: OrderedDict[str, deque[tuple[Owner, Portion]]] = OrderedDict()
        self.slots = 1
        """Portions that the peer takes at one time."""
        self.flying = 0
        self.flying_bytes = 0

    def add(self, ticket: str, owner: Owner, waiting: Sequence[Portion]) -> None:
        queue = self._queues.setdefault(ticket, deque())
        queue.extend((owner, portion) for portion in waiting)

    def next(self) -> tuple[Owner, Portion] | None:
        """The next portion that may go, now on its way; None while there is none or no credit."""
        for ticket, queue in self._queues.items():
            _, portion = queue[0]
            size_bytes = portion.size_bytes
            full = self.flying and self.flying_bytes + size_bytes > self._window_bytes
            if self.flying >= self.slots or full or not self._budget.take(size_bytes, self._resume):
                return None
            self.flying += 1
            self.flying_bytes += size_bytes
            turn = queue.popleft()
            self._queues.move_to_end(ticket)
            if not queue:
                del self._queues[ticket]
            return turn
        return None

    def ended(self, portion: Portion) -> None:
        """Nothing of this portion is on its way any more."""
        self.flying -= 1
        self.flying_bytes -= portion.size_bytes
        self._budget.give(portion.size_bytes)

    def drop(self, ticket: str, owner: Owner) -> int:
        """The owner wants nothing more of what still waits: how many portions that were."""
        queue = self._queues.pop(ticket, deque())
        left = deque(entry for entry in queue if entry[0] is not owner)
        if left:
            self._queues[ticket] = left
        return len(queue) - len(left)

    def close(self) -> None:
        """Give everything back."""
        self._queues.clear()
        self._budget.forget(self._resume)
        size_bytes, self.flying, self.flying_bytes = self.flying_bytes, 0, 0
        self._budget.give(size_bytes)
