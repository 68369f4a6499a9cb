"""The bounded queue between ended spans and an exporter's thread; losses are counted by reason."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from shared.telemetry.metrics import Metrics
from shared.telemetry.span import Span

QUEUE_SPANS: Final = 8192
BATCH_SPANS: Final = 512
FLUSH_S: Final = 1.0
"""A batch costs its receiver more than its spans do: few are sent while little happens."""


class Export(Protocol):
    """Sends a batch; runs in a thread of its own and may take its time."""

    def send(self, spans: Sequence[Span], stop: threading.Event) -> bool:
        """Whether they were taken. After `stop` nothing is tried twice."""
        ...

    def give_up(self) -> None:
        """From another thread: what is under way fails soon."""
        ...

    def close(self) -> None:
        """Nothing more will be sent."""
        ...


class SpanQueue:
    """A thread that sends what waits, in batches, a moment after the first span came."""

    def __init__(self, export: Export, metrics: Metrics) -> None:
        self._export = export
        self._waiting: deque[Span] = deque()
        self._lock = threading.Lock()
        self._inside = 0
        """Waiting or being sent."""
        self._some = threading.Event()
        self._now = threading.Event()
        """A batch is full, or the end has come: do not wait for more."""
        self._stop = threading.Event()
        self._empty = threading.Event()
        self._empty.set()
        self._abandoned = False
        dropped = metrics.counter(
            "baton_spans_dropped_total", "Spans that were not delivered.", ("reason",)
        )
        self._full, self._failed = dropped.labels("queue_full"), dropped.labels("export_failed")
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        """Never waits: what does not fit is counted and lost."""
        with self._lock:
            full = self._inside >= QUEUE_SPANS
            self._inside += not full
            self._empty.clear()
        if full:
            self._full.inc()
            return
        self._waiting.append(span)
        if not self._some.is_set():
            self._some.set()
        if len(self._waiting) >= BATCH_SPANS:
            self._now.set()

    def flush(self, limit_s: float) -> bool:
        """Send what waits now; blocks until it was sent or lost, or the time is over."""
        self._now.set()
        return self._empty.wait(limit_s)

    def close(self) -> None:
        """Send what waits, then end."""
        self._stop.set()
        self._now.set()
        self._some.set()

    def join(self) -> None:
        self._thread.join()

    def abandon(self) -> None:
        """Whatever is still inside fails at once."""
        self._abandoned = True
        self._export.give_up()

    def _run(self) -> None:
        while True:
            self._some.wait()
            self._now.wait(FLUSH_S)
            self._some.clear()
            if not self._stop.is_set():
                self._now.clear()
            while batch := self._take():
                self._send(batch)
            if self._stop.is_set() and not self._waiting:
                self._export.close()
                return

    def _take(self) -> list[Span]:
        return [self._waiting.popleft() for _ in range(min(BATCH_SPANS, len(self._waiting)))]

    def _send(self, batch: Sequence[Span]) -> None:
        taken = False
        try:
            taken = not self._abandoned and self._export.send(batch, self._stop)
        finally:
            with self._lock:
                self._inside -= len(batch)
                if not self._inside:
                    self._empty.set()
            if not taken:
                self._failed.inc(len(batch))
