"""Which scheduler leads, as far as one who only listens can tell: the highest epoch lately heard.

Messages of an older leader are refused. The memory is short, because epochs may begin anew when
the store that counts them was lost.
"""

from __future__ import annotations

from typing import Final

from shared.ids import Epoch

MEMORY_S: Final = 10.0


class Leader:
    """`accepts` each epoch that arrives, or not."""

    def __init__(self) -> None:
        self._epoch = Epoch(0)
        self._heard_s = float("-inf")

    def accepts(self, epoch: Epoch, now: float) -> bool:
        """False: a newer leader was heard within MEMORY_S."""
        if epoch < self._epoch and now - self._heard_s <= MEMORY_S:
            return False
        self._epoch, self._heard_s = epoch, now
        return True
