"""The tables of the trace store. Knows no queue, no search and no file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Final

import orjson

from services.gateway.otlp import SpanRow
from services.gateway.trace_summary import Summary

SCHEMA: Final = 3
"""Grows with each change of the tables; a file of another number is set aside, not converted."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS spans (
    trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT NOT NULL,
    service TEXT NOT NULL, worker TEXT NOT NULL, name TEXT NOT NULL, kind INTEGER NOT NULL,
    start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, error INTEGER NOT NULL,
    attributes BLOB NOT NULL, events BLOB NOT NULL, links BLOB NOT NULL,
    PRIMARY KEY (trace_id, span_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS traces (
    trace_id TEXT PRIMARY KEY, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
    error INTEGER NOT NULL, root TEXT NOT NULL, request TEXT NOT NULL, tenant TEXT NOT NULL,
    route TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, attempts INTEGER NOT NULL, ttft_ns INTEGER,
    slo_missed TEXT NOT NULL, run TEXT NOT NULL, hints TEXT NOT NULL, stored_s REAL NOT NULL,
    settled INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS workers (
    worker TEXT NOT NULL, trace_id TEXT NOT NULL, PRIMARY KEY (trace_id, worker)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS traces_by_start ON traces (start_ns);
CREATE INDEX IF NOT EXISTS traces_by_request ON traces (request);
CREATE INDEX IF NOT EXISTS traces_by_run ON traces (run) WHERE run <> '';
CREATE INDEX IF NOT EXISTS traces_unsettled ON traces (stored_s) WHERE settled = 0;
CREATE INDEX IF NOT EXISTS workers_by_name ON workers (worker, trace_id);
"""
ADD_SPAN: Final = "INSERT OR IGNORE INTO spans VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
ADD_WORKER: Final = "INSERT OR IGNORE INTO workers VALUES (?,?)"
_OF_ROOT: Final = (
    "root", "request", "tenant", "route", "status", "reason", "prompt_tokens", "cached_tokens",
    "output_tokens", "attempts", "ttft_ns", "slo_missed", "run", "hints",
)  # fmt: skip
ADD_TRACE: Final = (
    "INSERT INTO traces VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,0) "
    "ON CONFLICT (trace_id) DO UPDATE SET "
    "start_ns = min(start_ns, excluded.start_ns), end_ns = max(end_ns, excluded.end_ns), "
    "error = max(error, excluded.error), stored_s = excluded.stored_s, "
    + ", ".join(
        f"{name} = CASE WHEN excluded.root = '' THEN {name} ELSE excluded.{name} END"
        for name in _OF_ROOT
    )
)
"""What the root told stays, whatever comes later."""


def connect(path: str) -> sqlite3.Connection:
    """A connection for one thread. Raises sqlite3.Error."""
    database = sqlite3.connect(path, timeout=5.0)
    database.row_factory = sqlite3.Row
    database.execute("PRAGMA synchronous = NORMAL")
    return database


def version(database: sqlite3.Connection) -> int | None:
    """Of a file that has tables; None: an empty one. Raises sqlite3.Error for what is no store."""
    found = database.execute("PRAGMA user_version").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return int(found) if tables else None


def make_tables(database: sqlite3.Connection) -> None:
    """As long as there are none; another process may be making them too: both find the same."""
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.execute("PRAGMA journal_mode = WAL")
    if version(database) is None:
        database.executescript(
            f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;"
        )


def span_values(row: SpanRow) -> tuple[object, ...]:
    """For ADD_SPAN."""
    head = (row.trace_id, row.span_id, row.parent_id, row.service, row.worker, row.name, row.kind)
    times = (row.start_ns, row.end_ns, row.error)
    return (*head, *times, row.attributes, row.events, row.links)


def trace_values(summary: Summary, stored_s: float) -> tuple[object, ...]:
    """For ADD_TRACE."""
    head = (summary.trace_id, summary.start_ns, summary.end_ns, summary.error)
    return (*head, *(getattr(summary, name) for name in _OF_ROOT), stored_s)


def worker_values(summaries: Iterable[Summary]) -> list[tuple[str, str]]:
    """For ADD_WORKER."""
    return [(worker, found.trace_id) for found in summaries for worker in found.workers]


def span(row: sqlite3.Row) -> dict[str, Any]:
    """A stored span with its JSON parts read."""
    found: dict[str, Any] = dict(row)
    found["error"] = bool(found["error"])
    for name in ("attributes", "events", "links"):
        found[name] = orjson.loads(found[name])
    return found


def is_ordinary(row: sqlite3.Row) -> bool:
    """Whether tail sampling may drop this trace: it went well, at the first attempt, in time, and
    no load run named it."""
    well = row["status"] == "finished" and not row["error"] and not row["slo_missed"]
    return well and row["attempts"] <= 1 and not row["run"]
