"""Spans in one SQLite file: a bounded queue, one writer thread, batches, caps on size and age.

Nobody waits for it: what does not fit the queue is refused, so exporters try again. What the disk
does not take is tried again, too; after the last try the writer counts it and goes on.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services.gateway import trace_schema as schema
from services.gateway.otlp import SpanRow
from services.gateway.tail import Tail
from services.gateway.trace_file import open_file
from services.gateway.trace_search import Search, listed, run_search
from services.gateway.trace_summary import summarise
from shared.clock import Clock
from shared.errors import Code, RefusedError

QUEUE_SPANS: Final = 50_000
BATCH_SPANS: Final = 1_000
BATCH_S: Final = 0.25
PRUNE_S: Final = 10.0
TAIL_S: Final = 30.0
"""A trace is judged so long after its last span: by then it is whole."""
SEARCH_S: Final = 2.0
_PAUSES_S: Final = (0.1, 0.5, 2.0)
"""Before a batch is tried again: no more files may be opened, a lock is held, the disk is full."""
_MAX_ROUNDS: Final = 100
_JUDGED_AT_ONCE: Final = 5_000
_REMEMBERED: Final = 20_000
_SHRINK: Final = "PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE);"
"""As a script: `execute` would step the first one once and so free a single page."""
_UNSETTLED: Final = "SELECT * FROM traces WHERE settled = 0 AND root <> '' AND stored_s < ? LIMIT ?"


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept, and for how long."""

    max_bytes: int
    max_age_s: float
    share: float = 1.0
    """Of traces of requests that went well; all others are kept."""

    def keeps(self, trace_id: str) -> bool:
        """The same answer everywhere for the same trace."""
        return int(trace_id[-13:], 16) < self.share * 16**13


class SpanStore:
    """Open one per process; `start` before the first `offer`, `close` at the end."""

    def __init__(
        self,
        path: str,
        retention: Retention,
        clock: Clock,
        failed: Callable[[BaseException, int], None],
        set_aside: Callable[[str, str], None] = lambda moved, why: None,
    ) -> None:
        """`failed` is told from the writer thread: the error, and how many spans were lost.
        `set_aside`: where a file went that this version cannot read, and why."""
        self._path = path
        self._retention = retention
        self._clock = clock
        self._failed = failed
        self._set_aside = set_aside
        self._queue: queue.Queue[Sequence[SpanRow] | None] = queue.Queue(QUEUE_SPANS)
        self._waiting = 0
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._next_prune_s = 0.0
        self._tail = Tail()
        self._dropped: OrderedDict[str, None] = OrderedDict()
        """Traces that were not kept: late spans of theirs are not either."""

    def start(self) -> None:
        """Create or open the file. Raises StartupError."""
        open_file(self._path, self._set_aside)
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
        with closing(schema.connect(self._path)) as database:
            found = database.execute(
                "SELECT s.* FROM spans s JOIN traces t USING (trace_id) "
                "WHERE t.trace_id = ? OR (t.request = ? AND ? <> '') ORDER BY s.start_ns, s.end_ns",
                (name, name, name),
            )
            return [schema.span(row) for row in found]

    def summary(self, trace_id: str) -> dict[str, Any] | None:
        """What a search would list of it; also of one whose root has not come."""
        search = Search(("trace_id = ?",), (trace_id,), 1)
        statement = search.statement().replace("root <> '' AND ", "")
        with closing(schema.connect(self._path)) as database:
            row = database.execute(statement, (trace_id, 1)).fetchone()
        return None if row is None else listed(row)

    def search(self, search: Search) -> list[dict[str, Any]]:
        """The latest traces that fit, without their spans. Raises RefusedError: it took too
        long."""
        give_up_s = self._clock.now() + SEARCH_S
        with closing(schema.connect(self._path)) as database:
            try:
                return run_search(database, search, lambda: self._clock.now() > give_up_s)
            except sqlite3.OperationalError as error:
                if "interrupted" not in str(error):
                    raise
        raise RefusedError("this search takes too long: narrow its time", Code.QUEUE_FULL, 1.0)

    def close(self) -> None:
        """Write what is queued and end the writer."""
        if self._writer is not None:
            self._queue.put(None)
            self._writer.join(timeout=5.0)

    # -- the writer thread ---------------------------------------------------------------

    def _write_all(self) -> None:
        database = self._opened()
        while (batch := self._next_batch()) is not None:
            database = self._written(database, batch)
            with self._lock:
                self._waiting -= len(batch)
        if database is not None:
            database.close()

    def _opened(self) -> sqlite3.Connection | None:
        """With all its files, while there are descriptors; None: with the first batch."""
        try:
            database = schema.connect(self._path)
            database.execute("SELECT 1 FROM spans LIMIT 1").fetchone()
        except (OSError, sqlite3.Error) as error:
            self._failed(error, 0)
            return None
        return database

    def _written(
        self, database: sqlite3.Connection | None, batch: Sequence[SpanRow]
    ) -> sqlite3.Connection | None:
        """A batch is written, or lost after the last try; the connection that did it."""
        for pause_s in (*_PAUSES_S, None):
            try:
                database = database or schema.connect(self._path)
                self._write(database, batch)
                break
            except (OSError, sqlite3.Error) as error:
                self._failed(error, len(batch) if pause_s is None else 0)
                self._make_room(database)
            time.sleep(pause_s or 0.0)
        return database

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
        if self._dropped:
            batch = [row for row in batch if row.trace_id not in self._dropped]
        summaries, stored_s = summarise(batch), self._unix_s()
        with database:
            database.executemany(schema.ADD_SPAN, [schema.span_values(row) for row in batch])
            traces = [schema.trace_values(summary, stored_s) for summary in summaries]
            database.executemany(schema.ADD_TRACE, traces)
            database.executemany(schema.ADD_WORKER, schema.worker_values(summaries))
        if self._clock.now() >= self._next_prune_s:
            self._prune(database)

    def _make_room(self, database: sqlite3.Connection | None) -> None:
        """A write failed. If the disk is full, what is old may go for what is new."""
        if database is None or self._clock.now() < self._next_prune_s:
            return
        try:
            self._prune(database)
        except (OSError, sqlite3.Error) as error:
            self._failed(error, 0)

    def _prune(self, database: sqlite3.Connection) -> None:
        """Old traces go first; then the oldest tenth, until the file is small enough."""
        self._next_prune_s = self._clock.now() + PRUNE_S
        self._judge(database)
        self._drop_where(database, "stored_s < ?", self._unix_s() - self._retention.max_age_s)
        for _ in range(_MAX_ROUNDS):
            if self.size_bytes() <= self._retention.max_bytes:
                return
            oldest = "SELECT trace_id FROM traces ORDER BY start_ns LIMIT " + (
                "(SELECT max(1, count(*) / 10) FROM traces)"
            )
            self._drop_where(database, f"trace_id IN ({oldest})")
            database.executescript(_SHRINK)

    def _judge(self, database: sqlite3.Connection) -> None:
        """Tail sampling: of whole traces keep what somebody will look for, and a share."""
        if self._retention.share >= 1.0:
            return
        due_s = self._unix_s() - TAIL_S
        whole = database.execute(_UNSETTLED, (due_s, _JUDGED_AT_ONCE)).fetchall()
        slow = self._tail.slow(whole)
        gone = [
            row["trace_id"]
            for row in whole
            if schema.is_ordinary(row)
            and row["trace_id"] not in slow
            and not self._retention.keeps(row["trace_id"])
        ]
        self._drop(database, gone)
        self._dropped.update(dict.fromkeys(gone))
        while len(self._dropped) > _REMEMBERED:
            self._dropped.popitem(last=False)
        with database:
            settled = [(row["trace_id"],) for row in whole]
            database.executemany("UPDATE traces SET settled = 1 WHERE trace_id = ?", settled)

    def _drop_where(self, database: sqlite3.Connection, condition: str, *values: float) -> None:
        which = f"SELECT trace_id FROM traces WHERE {condition}"
        self._drop(database, [row[0] for row in database.execute(which, values)])

    def _drop(self, database: sqlite3.Connection, traces: Sequence[str]) -> None:
        with database:
            for table in ("spans", "workers", "traces"):
                names = [(name,) for name in traces]
                database.executemany(f"DELETE FROM {table} WHERE trace_id = ?", names)

    def _unix_s(self) -> float:
        return self._clock.unix_ns(self._clock.now()) / 1e9
