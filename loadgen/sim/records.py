"""The event log: a digest over everything that happens, and the latest lines for people."""

from __future__ import annotations

from collections import deque
from typing import Final

import xxhash

_KEPT: Final = 6_000


class EventLog:
    """Two runs are the same run when their digests are equal."""

    def __init__(self, *, words: bool = False) -> None:
        self._hash = xxhash.xxh3_128()
        self._words = words
        self._lines: deque[str] = deque(maxlen=_KEPT)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def event(self, now_s: float, host: str, event: object, actions: int) -> None:
        """A core has taken in an event."""
        self._hash.update(f"{now_s!r} {host} {type(event).__name__} {actions}".encode())
        if self._words:
            self._lines.append(f"{now_s:9.4f} {host}: {event!r} -> {actions} actions")

    def message(self, subject: str, payload: bytes) -> int:
        """Bytes leave a host. A number that tells them from others."""
        mark = xxhash.xxh3_64_intdigest(payload)
        self._hash.update(f"{subject} {mark}".encode())
        return mark

    def note(self, now_s: float, text: str) -> None:
        """A fault, a landing, an ending."""
        self._hash.update(f"{now_s!r} {text}".encode())
        if self._words:
            self._lines.append(f"{now_s:9.4f} -- {text}")

    def tail(self, request: str, count: int) -> list[str]:
        """The latest lines about a request and about faults."""
        wanted = [line for line in self._lines if " -- " in line or f"'{request}'" in line]
        return wanted[-count:]
