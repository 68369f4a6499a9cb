"""Blocking work of the admin port, in one thread of its own, behind a bounded line.

Never on the way of a request of a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from shared.errors import Code, RefusedError

Found = TypeVar("Found")


class SideThread:
    """`most` calls wait or run; beyond that they are refused with `busy`, to be tried again."""

    def __init__(self, name: str, most: int, busy: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._most = most
        self._busy = busy
        self._inside = 0

    async def run(self, work: Callable[[], Found]) -> Found:
        """Its result, or what it raises. Raises RefusedError when the line is full."""
        if self._inside >= self._most:
            raise RefusedError(self._busy, Code.QUEUE_FULL, 1.0)
        self._inside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._inside -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
