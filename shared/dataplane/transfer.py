"""One read from its first portion to its end, and whoever waits for it.

Waiting may be given up and taken up again: the read goes on, because its bytes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shared.dataplane.flow import Portion
from shared.errors import Code, TransferError


class LinkLost(TransferError):
    """The link ended before the owner answered: asking again is safe."""

    code = Code.WORKER_LOST


class Transfer:
    """Counts portions. Over when none waits or is on its way, or when its link was fenced."""

    def __init__(self, ticket: str, waiting: Sequence[Portion], limit_s: float) -> None:
        self.ticket = ticket
        self.portions = tuple(waiting)
        self.limit_s = limit_s
        """Deadline, in the loop's time."""
        self.answered = False
        """The owner said something about it."""
        self.failure: TransferError | None = None
        self.over = False
        self._left = len(self.portions)
        self._waiter: asyncio.Future[None] | None = None

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

    def start(self) -> None:
        """Start, or start anew on another link."""
        self.failure, self.over, self._left = None, False, len(self.portions)

    async def wait(self, timeout_s: float) -> bool:
        """Whether it is over within this time. Cancelling changes nothing about the read."""
        if self.over or timeout_s <= 0:
            return self.over
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._wake)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
        return self.over

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
