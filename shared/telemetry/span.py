"""One span: a name, two instants, facts, moments and links. Filled on the request path, so it
holds plain values only; what becomes of it is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Final

from shared.clock import Clock
from shared.telemetry.context import Context

Value = str | bool | int | float | Sequence[str]
"""What an attribute may be."""

MOST_EVENTS: Final = 256
_NO_ATTRIBUTES: Final[dict[str, Value]] = {}


class Kind(IntEnum):
    """The part a span plays between processes, with OTLP's numbers."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class Span:
    """An open span. End it once, on every path; a second `end` changes nothing. Where `ended` is
    None nobody wants it: it only carries the context on."""

    __slots__ = (
        "_clock", "_ended", "attributes", "context", "end_ns", "events", "failed", "kind", "links",
        "lost_events", "name", "parent_id", "start_ns", "traceparent",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        context: Context,
        parent: Context | None,
        kind: Kind,
        clock: Clock,
        ended: Callable[[Span], None] | None,
    ) -> None:
        self.name = name
        self.context = context
        self.parent_id = "" if parent is None else parent.span_id
        self.kind = kind
        self.start_ns = 0
        self.end_ns = 0
        self.attributes: dict[str, Value] = _NO_ATTRIBUTES if ended is None else {}
        self.events: list[tuple[str, int, Mapping[str, Value]]] = []
        """Name, unix nanoseconds, attributes."""
        self.lost_events = 0
        self.links: tuple[Context, ...] = ()
        self.failed = False
        self.traceparent = context.traceparent
        self._clock = clock
        self._ended = ended

    def set(self, name: str, value: Value) -> None:
        if self._ended is not None:
            self.attributes[name] = value

    def event(self, name: str, attributes: Mapping[str, Value] | None = None) -> None:
        """A moment inside the span; beyond 256 they are only counted."""
        if self._ended is None:
            return
        if len(self.events) >= MOST_EVENTS:
            self.lost_events += 1
            return
        self.events.append((name, self._clock.unix_ns(self._clock.now()), attributes or {}))

    def end(self, error: str | None = None) -> None:
        """Close it now; `error` is a code of ours, and marks the span as failed."""
        if self._ended is None:
            return
        if error is not None:
            self.attributes["error.type"] = error
            self.failed = True
        self.end_at(self._clock.now())

    def end_at(self, end_s: float) -> None:
        """Close it at an instant of the clock."""
        ended, self._ended = self._ended, None
        if ended is not None:
            self.end_ns = max(self.start_ns, self._clock.unix_ns(end_s))
            ended(self)

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(None if error is None else str(getattr(error, "code", type(error).__name__)))
