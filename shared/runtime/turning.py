"""Whether this process is to end so that its supervisor starts it again in the other role.

Knows neither who orders that nor who starts it again: only the role, and the exit status.
"""

from __future__ import annotations

import asyncio
from typing import Final

EXIT_TURNED: Final = 75
"""Exit status of a worker that drained for the other role: start it as that one."""
OTHER_ROLE: Final = {"prefill": "decode", "decode": "prefill"}
"""The two roles that share an engine."""


class Turning:
    """Set at most once."""

    def __init__(self) -> None:
        self.to = ""
        self.asked = asyncio.Event()

    def begin(self, to: str) -> None:
        """Drain, then end with EXIT_TURNED. There is no way back; a second call changes nothing."""
        if not self.to:
            self.to = to
            self.asked.set()
