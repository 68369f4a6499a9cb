"""Which traces are kept, which are found, and what a bad disk or an old file costs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from services.gateway import span_store, trace_file, trace_schema
from services.gateway.otlp import SpanRow
from services.gateway.span_store import Retention, SpanStore
from services.gateway.trace_search import Search, read_search
from services.gateway.trace_summary import summarise
from shared.clock import SystemClock
from shared.errors import ClientError, RefusedError
from tests.builders import until

KEEP_ALL = Retention(1 << 30, 3600.0)
HINT = {"baton.hint.affinity_key": "applied"}
START_NS = 1_700_000_000_000_000_000


def root(number: int, **said: object) -> SpanRow:
    """The root of a request that went well, and what else its span says."""
    attributes: dict[str, object] = {
        "baton.tenant": "public",
        "baton.route": "disaggregated",
        "baton.attempts": 1,
        "gen_ai.usage.input_tokens": 64,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.time_to_first_chunk": 0.05,
    }
    start_ns = START_NS + number * 1_000_000_000
    return SpanRow(
        trace_id=f"{number:032x}",
        span_id="01" * 8,
        parent_id="",
        service="baton-gateway",
        worker="gateway-0",
        name="chat hashchain",
        kind=2,
        start_ns=start_ns,
        end_ns=start_ns + 200_000_000,
        error="error.type" in said,
        attributes=orjson.dumps(attributes | said),
        events=b"[]",
        links=b"[]",
        request=f"req-{number}",
    )


def child(number: int, worker: str) -> SpanRow:
    of = root(number)
    changed = {"span_id": worker[:8].encode().hex(), "parent_id": of.span_id, "kind": 1}
    return replace(of, **changed, worker=worker, name="prefill.job", request="", attributes=b"{}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SpanStore]:
    made = SpanStore(str(tmp_path / "t.sqlite"), KEEP_ALL, SystemClock(), lambda *_: None)
    made.start()
    yield made
    made.close()


async def fill(store: SpanStore) -> None:
    assert store.offer(
        [
            root(1),
            child(1, "prefill-0"),
            root(2, **{"baton.slo.missed": "ttft", "gen_ai.response.time_to_first_chunk": 2.0}),
            child(2, "prefill-1"),
            root(3, **{"error.type": "client_gone", "baton.cancel.cause": "client_gone"}),
            root(4, **{"error.type": "kv_pages_exhausted", "baton.route": "none"}),
            root(5, **{"gen_ai.usage.cache_read.input_tokens": 48, "baton.tenant": "blue", **HINT}),
        ]
    )
    await until(lambda: store._waiting == 0)


def found(store: SpanStore, **asked: str) -> list[str]:
    return [trace["request"] for trace in store.search(read_search(asked))]


async def test_every_filter_finds_what_it_says(store: SpanStore) -> None:
    await fill(store)
    assert found(store) == ["req-5", "req-4", "req-3", "req-2", "req-1"]
    assert found(store, status="cancelled") == ["req-3"]
    assert found(store, status="failed") == ["req-4"]
    assert found(store, status="finished") == ["req-5", "req-2", "req-1"]
    assert found(store, slo="missed") == ["req-2"]
    assert found(store, slo="met", status="finished") == ["req-5", "req-1"]
    assert found(store, worker="prefill-1") == ["req-2"]
    assert found(store, tenant="blue") == ["req-5"]
    assert found(store, hit="yes") == ["req-5"]
    assert found(store, hit="no", limit="2") == ["req-4", "req-3"]
    assert found(store, min_ttft_ms="1000") == ["req-2"]
    assert found(store, min_ms="201") == []
    assert found(store, route="none") == ["req-4"]
    assert found(store, reason="kv_pages_exhausted") == ["req-4"]
    assert found(store, hint="affinity_key=applied") == ["req-5"] and found(store, run="x") == []
    second_ms = (START_NS + 2_000_000_000) // 1_000_000
    assert found(store, since_ms=str(second_ms), until_ms=str(second_ms + 1)) == ["req-2"]
    assert found(store, before_ns=str(START_NS + 2_000_000_000)) == ["req-1"]


@pytest.mark.parametrize(
    "asked",
    [
        {"limit": "201"},
        {"limit": "-1"},
        {"since_ms": "yesterday"},
        {"status": "odd"},
        {"tenant": ""},
        {"worker": "x" * 129},
        {"colour": "red"},
        {"'; DROP TABLE traces; --": "1"},
    ],
)
def test_a_search_that_makes_no_sense_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(ClientError):
        read_search(asked)


async def test_a_search_that_takes_too_long_is_ended(
    store: SpanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store)
    monkeypatch.setattr(span_store, "SEARCH_S", -1.0)
    monkeypatch.setattr("services.gateway.trace_search._SEARCH_STEPS", 1)
    with pytest.raises(RefusedError):
        store.search(Search())


def test_spans_of_a_trace_may_come_in_any_order() -> None:
    """What the root said stays when spans without it come later, in batches of their own."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(trace_schema._TABLES)
        for rows in ([child(7, "prefill-0")], [root(7)], [child(7, "decode-0")]):
            (summary,) = summarise(rows)
            database.execute(trace_schema.ADD_TRACE, trace_schema.trace_values(summary, 1.0))
        kept = database.execute("SELECT request, status, ttft_ns, prompt_tokens FROM traces")
        assert kept.fetchall() == [("req-7", "finished", 50_000_000, 64)]


def test_lies_in_attributes_do_not_reach_the_columns() -> None:
    odd = {"gen_ai.usage.input_tokens": -5, "baton.attempts": True, "baton.tenant": ["x"]}
    (summary,) = summarise([root(1, **odd)])
    assert (summary.prompt_tokens, summary.attempts, summary.tenant) == (0, 0, "")


async def test_tail_sampling_keeps_what_somebody_will_look_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_store, "TAIL_S", -1.0)
    retention = Retention(1 << 30, 3600.0, share=0.0)
    store = SpanStore(str(tmp_path / "t.sqlite"), retention, SystemClock(), lambda *_: None)
    store.start()
    await fill(store)
    assert found(store) == ["req-4", "req-3", "req-2"]
    assert store.offer([child(1, "decode-0"), root(6, **{"baton.attempts": 2})])
    await until(lambda: store._waiting == 0)
    assert found(store) == ["req-6", "req-4", "req-3", "req-2"]
    assert store.trace(f"{1:032x}") == []
    store.close()


def test_the_share_is_kept_by_trace_and_not_by_chance() -> None:
    names = [f"{n * 0x9E3779B97F4A7C15 & (1 << 128) - 1:032x}" for n in range(1, 2_001)]
    kept = [name for name in names if Retention(1, 1.0, 0.25).keeps(name)]
    assert 400 < len(kept) < 600
    assert all(Retention(1, 1.0, 0.5).keeps(name) for name in kept)
    assert not any(Retention(1, 1.0, 0.0).keeps(name) for name in names)
    assert all(Retention(1, 1.0, 1.0).keeps(name) for name in names)


@pytest.mark.parametrize("version", [0, trace_schema.SCHEMA - 1, trace_schema.SCHEMA + 1])
def test_a_store_of_another_version_is_set_aside_whole(tmp_path: Path, version: int) -> None:
    path = tmp_path / "traces.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(f"CREATE TABLE spans (x); PRAGMA user_version = {version};")
    before = path.read_bytes()
    (tmp_path / "traces.sqlite.old-1").write_bytes(b"of the time before")
    told: list[tuple[str, str]] = []
    store = SpanStore(
        str(path), KEEP_ALL, SystemClock(), lambda *_: None, lambda *said: told.append(said)
    )
    store.start()
    store.close()
    moved = tmp_path / "traces.sqlite.old-2"
    age = "a newer" if version > trace_schema.SCHEMA else "an older"
    assert told == [(str(moved), f"it is of {age} version ({version}, not {trace_schema.SCHEMA})")]
    assert moved.read_bytes() == before
    assert (tmp_path / "traces.sqlite.old-1").read_bytes() == b"of the time before"
    assert store.search(Search()) == []
    told.clear()
    trace_file.open_file(str(path), lambda *said: told.append(said))
    assert told == []


def test_a_damaged_file_is_set_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    path.write_bytes(b"this is no database" * 100)
    told: list[str] = []
    trace_file.open_file(str(path), lambda moved, why: told.append(why))
    assert len(told) == 1 and told[0].startswith("it is damaged")
    trace_file.open_file(str(path), lambda moved, why: told.append(why))
    assert len(told) == 1


async def test_the_slowest_and_those_of_a_run_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_store, "TAIL_S", 0.0)
    monkeypatch.setattr(span_store, "PRUNE_S", 0.0)
    store = SpanStore(
        str(tmp_path / "t.sqlite"), Retention(1 << 30, 3600.0, 0.0), SystemClock(), lambda *_: None
    )
    store.start()
    rows = [root(number) for number in range(1, 401)]
    rows[70] = replace(rows[70], end_ns=rows[70].start_ns + 9_000_000_000)
    rows[80] = root(81, **{"gen_ai.response.time_to_first_chunk": 1.5})
    rows[90] = root(91, **{"baton.run": "run-1"})
    assert store.offer(rows)
    await until(lambda: len(store.search(Search(limit=200))) == 3)
    assert found(store) == ["req-91", "req-81", "req-71"]
    assert found(store, run="run-1") == ["req-91"]
    store.close()


def test_two_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "new.sqlite")
    with ThreadPoolExecutor(4) as threads:
        opened = [threads.submit(trace_file.open_file, path, lambda *_: None) for _ in range(4)]
    assert [each.result() for each in opened] == [None] * 4
    trace_file.open_file(path, lambda *_: None)


async def test_a_full_disk_costs_spans_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    path = str(tmp_path / "t.sqlite")
    store = SpanStore(path, KEEP_ALL, SystemClock(), lambda _, spans: lost.append(spans))
    trace_file.open_file(path, lambda *_: None)
    connect = trace_schema.connect

    def cramped(name: str) -> sqlite3.Connection:
        database = connect(name)
        database.execute("PRAGMA max_page_count = 1")
        return database

    monkeypatch.setattr(trace_schema, "connect", cramped)
    monkeypatch.setattr(span_store, "_PAUSES_S", (0.0,))
    store.start()
    wide = {"note": "x" * 4_000}
    assert store.offer([root(number, **wide) for number in range(1, 200)])
    await until(lambda: sum(lost) == 199)
    assert lost[0] == 0, "it was tried again"
    assert store.offer([root(1)])
    await until(lambda: store._waiting == 0)
    store.close()


async def test_what_could_not_be_written_for_a_while_is_written_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more files may be opened, from the start on."""
    lost: list[int] = []
    store = SpanStore(
        str(tmp_path / "t.sqlite"), KEEP_ALL, SystemClock(), lambda _, spans: lost.append(spans)
    )
    trace_file.open_file(str(tmp_path / "t.sqlite"), lambda *_: None)
    connect, left = trace_schema.connect, iter(range(2))

    def poor(name: str) -> sqlite3.Connection:
        if next(left, None) is not None:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(name)

    monkeypatch.setattr(span_store, "open_file", lambda *_: None)
    monkeypatch.setattr(trace_schema, "connect", poor)
    monkeypatch.setattr(span_store, "_PAUSES_S", (0.0, 0.0))
    store.start()
    assert store.offer([root(1)])
    await until(lambda: store._waiting == 0)
    assert lost == [0, 0]
    assert found(store) == ["req-1"]
    store.close()
