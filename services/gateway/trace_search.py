"""What a person may ask the trace store for, and the statement that answers it.

Every filter is optional; a name or value that is none is refused, never ignored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from services.gateway.trace_summary import STATUSES
from shared.errors import ClientError

MOST_LISTED: Final = 200
_LISTED: Final = 50
_MOST_NUMBER: Final = 1 << 53
_SEARCH_STEPS: Final = 1_000
"""Virtual machine steps between two looks at the deadline."""
ROUTES: Final = ("disaggregated", "colocated", "none")


@dataclass(frozen=True, slots=True)
class Search:
    """Conditions in SQL with their values."""

    conditions: tuple[str, ...] = ()
    values: tuple[object, ...] = ()
    limit: int = _LISTED

    def statement(self) -> str:
        where = " AND ".join(("root <> ''", *self.conditions))
        return (
            "SELECT t.*, (SELECT count(*) FROM spans s WHERE s.trace_id = t.trace_id) AS spans, "
            "(SELECT group_concat(worker, ',') FROM workers w WHERE w.trace_id = t.trace_id) "
            f"AS workers FROM traces t WHERE {where} ORDER BY start_ns DESC LIMIT ?"
        )


def read_search(asked: Mapping[str, str]) -> Search:
    """From the query of a URL. Raises ClientError naming the parameter."""
    conditions: list[str] = []
    values: list[object] = []
    limit = _LISTED
    for name, text in asked.items():
        if name == "limit":
            limit = _number(name, text, MOST_LISTED)
            continue
        condition, value = _condition(name, text)
        conditions.append(condition)
        values += value
    return Search(tuple(conditions), tuple(values), limit)


def _condition(name: str, text: str) -> tuple[str, list[object]]:
    match name:
        case "since_ms":
            return "start_ns >= ?", [_number(name, text) * 1_000_000]
        case "before_ns":
            return "start_ns < ?", [_number(name, text, (1 << 63) - 1)]
        case "until_ms":
            return "start_ns < ?", [_number(name, text) * 1_000_000]
        case "min_ms":
            return "end_ns - start_ns >= ?", [_number(name, text) * 1_000_000]
        case "min_ttft_ms":
            return "ttft_ns >= ?", [_number(name, text) * 1_000_000]
        case "slo":
            return {"missed": "slo_missed <> ''", "met": "slo_missed = ''"}[
                _one_of(name, text, ("missed", "met"))
            ], []
        case "hit":
            return {"yes": "cached_tokens > 0", "no": "cached_tokens = 0"}[
                _one_of(name, text, ("yes", "no"))
            ], []
        case "status":
            return "status = ?", [_one_of(name, text, STATUSES)]
        case "route":
            return "route = ?", [_one_of(name, text, ROUTES)]
        case "tenant":
            return "tenant = ?", [_label(name, text)]
        case "reason":
            return "reason = ?", [_label(name, text)]
        case "run":
            return "run = ? AND run <> ''", [_label(name, text)]
        case "hint":
            return "instr(hints, ?) > 0", [_label(name, text)]
        case "worker":
            part = "trace_id IN (SELECT trace_id FROM workers WHERE worker = ?)"
            return part, [_label(name, text)]
        case _:
            known = "since_ms, until_ms, before_ns, min_ms, min_ttft_ms, slo, hit, status, route"
            message = f"a search takes {known}, reason, tenant, worker, run, hint and limit"
            raise ClientError(message, param=name[:64] if name.isidentifier() else None)


def run_search(database: sqlite3.Connection, search: Search, expired: Any) -> list[dict[str, Any]]:
    """Newest first. `expired` is asked often; when it says so the search ends with what SQLite
    calls an interruption (sqlite3.OperationalError)."""
    database.set_progress_handler(expired, _SEARCH_STEPS)
    found = database.execute(search.statement(), (*search.values, search.limit))
    return [listed(row) for row in found]


def listed(row: sqlite3.Row) -> dict[str, Any]:
    """A trace without its spans."""
    found = {name: row[name] for name in row.keys() if name not in ("stored_s", "settled")}  # noqa: SIM118
    found["error"] = bool(found["error"])
    found["workers"] = sorted((found["workers"] or "").split(",")) if found["workers"] else []
    return found


def _number(name: str, text: str, most: int = _MOST_NUMBER) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise ClientError(f"'{name}' must be a whole number, 0..{most}", param=name)
    return int(text)


def _one_of(name: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise ClientError(f"'{name}' must be one of {', '.join(known)}", param=name)
    return text


def _label(name: str, text: str) -> str:
    if not text or len(text) > 128:
        raise ClientError(f"'{name}' must be 1 to 128 characters", param=name)
    return text
