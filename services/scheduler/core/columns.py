"""The load of all workers as arrays, one row each: a thousand are compared in a few microseconds.

Filled by the cluster at each heartbeat and charge; read by policies. Knows no messages.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

_START: Final = 64
_NAMES: Final = ("done_s", "free", "charged_pages", "streams", "charges", "sent_s", "received_s")


class Columns:
    """`done_s`: when all work is done; pages `free` and `charged_pages`; `streams` reported and
    `charges` placed since; `sent_s` and `received_s`: when the card has no more to send or to
    receive."""

    def __init__(self) -> None:
        self._arrays: dict[str, Floats] = {name: np.zeros(_START) for name in _NAMES}
        self._unused = list(range(_START - 1, -1, -1))

    def take(self) -> int:
        """A row of zeros."""
        if not self._unused:
            size = len(self._arrays["done_s"])
            self._arrays = {
                name: np.concatenate([array, np.zeros(size)])
                for name, array in self._arrays.items()
            }
            self._unused = list(range(2 * size - 1, size - 1, -1))
        return self._unused.pop()

    def give(self, row: int) -> None:
        """The worker is gone."""
        for array in self._arrays.values():
            array[row] = 0.0
        self._unused.append(row)

    def report(self, row: int, done_s: float, free: int, streams: int) -> None:
        """A heartbeat came."""
        arrays = self._arrays
        arrays["done_s"][row] = done_s
        arrays["free"][row] = free
        arrays["streams"][row] = streams

    def charge(self, row: int, done_s: float, pages: int, charges: int) -> None:
        """What was placed there since its report changed."""
        arrays = self._arrays
        arrays["done_s"][row] = done_s
        arrays["charged_pages"][row] = pages
        arrays["charges"][row] = charges

    def transfers(self, row: int, received_s: float, sent_s: float) -> None:
        """When its card will have received and sent all that it has to."""
        self._arrays["received_s"][row] = received_s
        self._arrays["sent_s"][row] = sent_s

    def sending_s(self, rows: Rows, now: float) -> Floats:
        """Seconds of what its card has to send, of each row."""
        return np.asarray(np.maximum(0.0, self._arrays["sent_s"][rows] - now))

    def receiving_s(self, rows: Rows, now: float) -> Floats:
        """The same to receive."""
        return np.asarray(np.maximum(0.0, self._arrays["received_s"][rows] - now))

    def wait_s(self, rows: Rows, now: float) -> Floats:
        """Seconds until a job placed now would start, of each row."""
        return np.asarray(np.maximum(0.0, self._arrays["done_s"][rows] - now))

    def pages_free(self, rows: Rows) -> Floats:
        """Pages that a new job could get."""
        return np.asarray(self._arrays["free"][rows] - self._arrays["charged_pages"][rows])

    def streams(self, rows: Rows) -> Floats:
        """Sequences running or placed."""
        return np.asarray(self._arrays["streams"][rows] + self._arrays["charges"][rows])


def least(values: Floats, most: int) -> Rows:
    """Positions of the `most` smallest values, ascending."""
    if len(values) > most:
        few = np.argpartition(values, most)[:most]
        return np.asarray(few[np.argsort(values[few], kind="stable")], dtype=np.int64)
    return np.asarray(np.argsort(values, kind="stable"), dtype=np.int64)
