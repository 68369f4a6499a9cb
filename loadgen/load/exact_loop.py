"""An event loop whose timers are exact to tens of microseconds, on Linux.

asyncio waits with epoll, which counts whole milliseconds and rounds up; at 500 requests/s that is
half of the gap between two. Here the wait ends by a timerfd. Elsewhere the usual loop is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import selectors
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

_CLOCK_MONOTONIC: Final = 1
_NONBLOCK: Final = os.O_NONBLOCK
_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_SHORTEST_S: Final = 1e-6

_Result = TypeVar("_Result")


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


if sys.platform == "linux":

    class ExactSelector(selectors.EpollSelector):
        """Epoll with a timer among its files. Raises OSError where the kernel has none."""

        def __init__(self) -> None:
            super().__init__()
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._timer = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
            if self._timer < 0:
                super().close()
                raise OSError(ctypes.get_errno(), "timerfd_create")
            self._setting = _Setting()
            self.register(self._timer, selectors.EVENT_READ)

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """As of the base; `timeout` in seconds is kept to the microsecond."""
            if timeout is None or timeout <= 0:
                return self._without_timer(super().select(timeout))
            whole = int(timeout)
            self._setting.value.seconds = whole
            rest = max(timeout - whole, 0.0 if whole else _SHORTEST_S)
            self._setting.value.nanoseconds = min(999_999_999, int(rest * 1e9))
            self._libc.timerfd_settime(self._timer, 0, ctypes.byref(self._setting), None)
            return self._without_timer(super().select(None))

        def _without_timer(
            self, ready: list[tuple[selectors.SelectorKey, int]]
        ) -> list[tuple[selectors.SelectorKey, int]]:
            others = [entry for entry in ready if entry[0].fd != self._timer]
            if len(others) != len(ready):
                with contextlib.suppress(BlockingIOError):
                    os.read(self._timer, 8)
            return others

        def close(self) -> None:
            """Of the timer too; safe to repeat."""
            if self._timer >= 0:
                os.close(self._timer)
                self._timer = -1
            super().close()


def new_loop() -> asyncio.AbstractEventLoop:
    """The most exact loop that there is here."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return asyncio.SelectorEventLoop(ExactSelector())
    return asyncio.new_event_loop()


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """As asyncio.run, on such a loop."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)
