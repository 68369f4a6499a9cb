"""A child process that must not outlive its parent: what to run in it before it begins.

Linux only; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent() -> None:
    """For `preexec_fn`: the kernel sends SIGTERM when the thread that started us has ended."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
