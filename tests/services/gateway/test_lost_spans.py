"""Stand-ins for what a dead process could not send: named where that is known, never invented."""

from __future__ import annotations

from typing import Any

from services.gateway.lost_spans import LOST, with_stand_ins
from shared.telemetry.context import Context, derived
from tests.services.gateway.test_ttft_split import span

TRACE = "ab" * 16
ATTEMPT = "cd" * 8
DECODE = derived(Context(TRACE, ATTEMPT, 1), "decode.job").span_id


def trace(*more: dict[str, Any], answer: str = "accepted") -> list[dict[str, Any]]:
    said = {
        "baton.role": "decode",
        "baton.worker": "decode-1",
        "baton.attempt": 2,
        "baton.answer": answer,
    }
    spans = [
        span("chat", 0, 100),
        span("gateway.attempt", 1, 50, "chat", id=ATTEMPT),
        span("gateway.send", 2, 3, ATTEMPT, attributes=said),
        *more,
    ]
    return [one | {"trace_id": TRACE} for one in spans]


def lost(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in spans if LOST in one["attributes"]]


def test_a_job_that_was_accepted_and_never_told_of() -> None:
    spans = with_stand_ins(trace(span("transfer.pull", 5, 30, DECODE)))
    (found,) = lost(spans)
    assert found["name"] == "decode.job" and found["worker"] == "decode-1"
    assert found["parent_id"] == ATTEMPT and found["error"]
    assert (found["start_ns"], found["end_ns"]) == (2_000_000, 30_000_000)
    assert found["attributes"]["baton.attempt"] == 2
    known = {one["span_id"] for one in spans}
    assert all(one["parent_id"] in known for one in spans if one["name"] != "chat")


def test_a_job_that_told_or_was_refused_needs_none() -> None:
    told = trace(span("decode.job", 2, 40, ATTEMPT, id=DECODE))
    assert with_stand_ins(told) == sorted(told, key=lambda s: (s["start_ns"], s["end_ns"]))
    assert lost(with_stand_ins(trace(answer="kv_pages_exhausted"))) == []


def test_another_parent_that_is_missing_has_no_name() -> None:
    below = [span("kvpool.lookup", 5, 6, "ef" * 8), span("kvpool.store", 8, 9, "ef" * 8, id="x")]
    spans = with_stand_ins(trace(*below, answer="timeout"))
    (found,) = lost(spans)
    assert (found["name"], found["worker"], found["parent_id"]) == ("lost", "", "chat")
    assert (found["start_ns"], found["end_ns"]) == (5_000_000, 9_000_000)


def test_without_its_root_a_trace_is_left_as_it_is() -> None:
    spans = trace()[1:]
    assert with_stand_ins(spans) == spans and with_stand_ins([]) == []


def test_a_parent_of_the_client_is_no_loss() -> None:
    spans = trace(answer="timeout")
    spans[0]["parent_id"] = "12" * 8
    assert lost(with_stand_ins(spans)) == []
