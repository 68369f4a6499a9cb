"""Spans in one SQLite file: a bounded queue, one writer thread, batches, caps on size and age.

Nobody waits for it: what does not fit the queue is dropped and counted by the caller.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import orjson

from services.gateway.otlp import SpanRow
from shared.clock import Clock
from shared.errors import StartupError

QUEUE_SPANS: Final = 50_000
BATCH_SPANS: Final = 1_000
BATCH_S: Final = 0.25
PRUNE_S: Final = 30.0
_MAX_ROUNDS: Final = 100
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS spans (
    trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT NOT NULL,
    service TEXT NOT NULL, worker TEXT NOT NULL, name TEXT NOT NULL, kind INTEGER NOT NULL,
    start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, error INTEGER NOT NULL,
    attributes BLOB NOT NULL, events BLOB NOT NULL, links BLOB NOT NULL,
    PRIMARY KEY (trace_id, span_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS traces (
    trace_id TEXT PRIMARY KEY, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
    root TEXT NOT NULL, request TEXT NOT NULL, error INTEGER NOT NULL, stored_s REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS traces_by_start ON traces (start_ns);
CREATE INDEX IF NOT EXISTS traces_by_request ON traces (request);
"""
_SHRINK: Final = "PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE);"
"""As a script: `execute` would step the first one once and so free a single page."""
_ADD_SPAN: Final = "INSERT OR REPLACE INTO spans VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
_ADD_TRACE: Final = """
INSERT INTO traces VALUES (?,?,?,?,?,?,?) ON CONFLICT (trace_id) DO UPDATE SET
    start_ns = min(start_ns, excluded.start_ns), end_ns = max(end_ns, excluded.end_ns),
    root = CASE WHEN excluded.root = '' THEN root ELSE excluded.root END,
    request = CASE WHEN excluded.request = '' THEN request ELSE excluded.request END,
    error = max(error, excluded.error), stored_s = excluded.stored_s
"""


class SpanStore:
    """Open one per process; `start` before the first `offer`, `close` at the end."""

    def __init__(
        self,
        path: str,
        max_bytes: int,
        max_age_s: float,
        clock: Clock,
        failed: Callable[[BaseException, int], None],
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._failed = failed
        """Told from the writer thread: the error, and how many spans were lost."""
        self._queue: queue.Queue[Sequence[SpanRow] | None] = queue.Queue(QUEUE_SPANS)
        self._waiting = 0
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._next_prune_s = 0.0

    def start(self) -> None:
        """Create or open the file. Raises StartupError."""
        try:
            Path(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with closing(self._connect()) as database:
                database.execute("PRAGMA auto_vacuum = INCREMENTAL")
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise StartupError(
                f"the trace store {self._path} cannot be opened ({error}): "
                "remove the file or set --store-path"
            ) from None
        self._writer = threading.Thread(target=self._write_all, name="span-writer", daemon=True)
        self._writer.start()

    def offer(self, rows: Sequence[SpanRow]) -> bool:
        """Queue spans for writing; False when the queue is full and none was taken."""
        with self._lock:
            if self._waiting + len(rows) > QUEUE_SPANS:
                return False
            self._waiting += len(rows)
        self._queue.put_nowait(rows)
        return True

    def size_bytes(self) -> int:
        """Of the file and its write-ahead log."""
        return sum(
            path.stat().st_size
            for path in (Path(self._path), Path(self._path + "-wal"))
            if path.exists()
        )

    def trace(self, name: str) -> list[dict[str, Any]]:
        """All spans of a trace, by trace id or by request id, in order of their start."""
        with closing(self._connect()) as database:
            found = database.execute(
                "SELECT s.* FROM spans s JOIN traces t USING (trace_id) "
                "WHERE t.trace_id = ? OR (t.request = ? AND ? <> '') ORDER BY s.start_ns, s.end_ns",
                (name, name, name),
            )
            return [_span(row) for row in found]

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The latest traces, newest first, without their spans."""
        with closing(self._connect()) as database:
            found = database.execute(
                "SELECT t.*, (SELECT count(*) FROM spans s WHERE s.trace_id = t.trace_id) AS spans "
                "FROM traces t ORDER BY t.start_ns DESC LIMIT ?",
                (limit,),
            )
            names = ("trace_id", "start_ns", "end_ns", "root", "request", "error", "spans")
            return [{name: row[name] for name in names} for row in found]

    def close(self) -> None:
        """Write what is queued and end the writer."""
        if self._writer is not None:
            self._queue.put(None)
            self._writer.join(timeout=5.0)

    # -- the writer thread ---------------------------------------------------------------

    def _write_all(self) -> None:
        with closing(self._connect()) as database:
            while (batch := self._next_batch()) is not None:
                try:
                    self._write(database, batch)
                except sqlite3.Error as error:
                    self._failed(error, len(batch))
                with self._lock:
                    self._waiting -= len(batch)

    def _next_batch(self) -> list[SpanRow] | None:
        """Spans that came within `BATCH_S` of the first; None at the end."""
        first = self._queue.get()
        if first is None:
            return None
        batch = list(first)
        end_s = self._clock.now() + BATCH_S
        while len(batch) < BATCH_SPANS and (left_s := end_s - self._clock.now()) > 0:
            try:
                more = self._queue.get(timeout=left_s)
            except queue.Empty:
                break
            if more is None:
                self._queue.put_nowait(None)
                break
            batch += more
        return batch

    def _write(self, database: sqlite3.Connection, batch: Sequence[SpanRow]) -> None:
        with database:
            database.executemany(_ADD_SPAN, [_span_values(row) for row in batch])
            database.executemany(_ADD_TRACE, _trace_values(batch, self._unix_s()))
        if self._clock.now() >= self._next_prune_s:
            self._next_prune_s = self._clock.now() + PRUNE_S
            self._prune(database)

    def _prune(self, database: sqlite3.Connection) -> None:
        """Old traces go first; then the oldest tenth, until the file is small enough."""
        self._drop(database, "stored_s < ?", (self._unix_s() - self._max_age_s,))
        for _ in range(_MAX_ROUNDS):
            if self.size_bytes() <= self._max_bytes:
                return
            oldest = "SELECT trace_id FROM traces ORDER BY start_ns LIMIT " + (
                "(SELECT max(1, count(*) / 10) FROM traces)"
            )
            self._drop(database, f"trace_id IN ({oldest})", ())
            database.executescript(_SHRINK)

    def _drop(
        self, database: sqlite3.Connection, condition: str, values: tuple[float, ...]
    ) -> None:
        with database:
            which = f"SELECT trace_id FROM traces WHERE {condition}"
            gone = [row[0] for row in database.execute(which, values)]
            for statement in ("DELETE FROM spans", "DELETE FROM traces"):
                database.executemany(f"{statement} WHERE trace_id = ?", [(name,) for name in gone])

    def _unix_s(self) -> float:
        return self._clock.unix_ns(self._clock.now()) / 1e9

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=5.0)
        database.row_factory = sqlite3.Row
        database.execute("PRAGMA synchronous = NORMAL")
        return database


def _span_values(row: SpanRow) -> tuple[object, ...]:
    head = (row.trace_id, row.span_id, row.parent_id, row.service, row.worker, row.name, row.kind)
    times = (row.start_ns, row.end_ns, row.error)
    return (*head, *times, row.attributes, row.events, row.links)


def _trace_values(batch: Iterable[SpanRow], stored_s: float) -> list[tuple[object, ...]]:
    return [
        (
            row.trace_id,
            row.start_ns,
            row.end_ns,
            row.name if row.request else "",
            row.request,
            row.error,
            stored_s,
        )
        for row in batch
    ]


def _span(row: sqlite3.Row) -> dict[str, Any]:
    span: dict[str, Any] = dict(row)
    span["error"] = bool(span["error"])
    for name in ("attributes", "events", "links"):
        span[name] = orjson.loads(span[name])
    return span
