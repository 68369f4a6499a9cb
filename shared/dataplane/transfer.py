"""One read from its first portion to its end, and whoever waits for it.

Waiting may be given up and taken up again: the read goes on, because its bytes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shared.dataplane.deadlines import Deadlines
from shared.dataplane.flow import Portion
from shared.errors import Code, TransferError


class LinkLost(TransferError):
    """The link ended before the owner answered: asking again is safe."""

    code = Code.WORKER_LOST


class Transfer:
    """Counts portions. Over when none waits or is on its way, or when its link was fenced."""

    __slots__ = (
        *("_begun_s", "_deadlines", "_left", "_waiter", "answered", "failure"),
        *("limit_s", "over", "portions", "seconds", "ticket"),
    )

    def __init__(
        self, ticket: str, waiting: Sequence[Portion], limit_s: float, deadlines: Deadlines
    ) -> None:
        self.ticket = ticket
        self.portions = waiting
        self.limit_s = limit_s
        """Deadline, in the loop's time."""
        self.answered = False
        """The owner said something about it."""
        self.failure: TransferError | None = None
        self.over = False
        self.seconds = 0.0
        """How long it took, once it is over."""
        self._begun_s = deadlines.now()
        self._left = len(waiting)
        self._waiter: asyncio.Future[None] | None = None
        self._deadlines = deadlines

    def portion_ended(self) -> None:
        """A portion has landed or was refused; nothing of it moves any more."""
        self._left -= 1
        if not self._left:
            self._end()

    def give_up(self, waiting: int, failure: TransferError) -> None:
        """`waiting` portions will not be asked for. What is on its way still ends by itself."""
        self.failure = self.failure or failure
        self._left -= waiting
        if not self._left:
            self._end()

    def cut_off(self, failure: TransferError) -> None:
        """Its link was fenced: over at once."""
        if not self.over:
            self.failure = failure
            self._end()

    def start_anew(self) -> None:
        """On another link."""
        self.failure, self.over, self._left = None, False, len(self.portions)

    def wait(self, limit_s: float) -> asyncio.Future[None]:
        """What to await until it is `over`, or so long. Cancelling changes nothing about the
        read. One waits at a time."""
        if self._waiter is not None:
            self._deadlines.leave(self._waiter)
        waiter = self._waiter = self._deadlines.waiter(limit_s)
        if self.over:
            self._wake(waiter)
        return waiter

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self.seconds = self._deadlines.now() - self._begun_s
            if self._waiter is not None:
                self._wake(self._waiter)

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        self._waiter = None
        self._deadlines.leave(waiter)
        if not waiter.done():
            waiter.set_result(None)
