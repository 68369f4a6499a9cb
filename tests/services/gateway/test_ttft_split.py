"""Parts that add up exactly, whatever the path, the clocks or the spans that are missing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from services.gateway.critical_path import critical_path
from services.gateway.ttft_split import PARTS, split_ttft
from services.gateway.what_if import what_if_colocated
from shared.costs import chunked_prefill_s
from shared.ids import Epoch, WorkerId
from shared.wire.views import WorkerSeen
from shared.wire.workers import CostModel, WorkerLoad

Span = dict[str, Any]
MS = 1_000_000


def span(name: str, begin: float, end: float, parent: str = "", **more: Any) -> Span:
    """Instants in milliseconds. The id is the name, unless another one is given."""
    service = {"gateway": "gateway", "chat": "gateway", "scheduler": "scheduler"}.get(
        name.split(".")[0], "decode" if name.startswith(("decode", "transfer", "kv")) else "prefill"
    )
    return {
        "span_id": more.pop("id", name),
        "parent_id": parent,
        "service": f"baton-{more.pop('service', service)}",
        "worker": f"{service}-0",
        "name": name,
        "kind": 2 if name == "chat" else 1,
        "start_ns": round(begin * MS),
        "end_ns": round(end * MS),
        "error": False,
        "attributes": more.pop("attributes", {}),
        "events": [
            {"name": event, "time_ns": round(at * MS), "attributes": {"what": what}}
            for event, what, at in more.pop("events", ())
        ],
        "links": [],
    }


def gateway(
    first: float, events: tuple[tuple[str, str, float], ...], begin: float = 4
) -> list[Span]:
    return [
        span("chat", 0, 100),
        span("gateway.parse", 1, 2, "chat"),
        span("gateway.render", 2, 3, "chat"),
        span("gateway.attempt", begin, 100, "chat", events=events),
        span(
            "gateway.stream", first, 100, "chat", attributes={"baton.stream.first_write_s": 0.002}
        ),
    ]


def worker(at: float, service: str = "prefill", chunk: float = 20) -> list[Span]:
    """Job, turn, two chunks, a token: 2 + 1 + 2*chunk + 1 ms after `at`."""
    job, begin = "prefill.job", at + 3
    return [
        span(job, at, at + 80, "gateway.attempt", service=service),
        span("prefill.queue", at, at + 2, job, service=service),
        span("prefill.chunk", begin, begin + chunk, job, id="c1", service=service),
        span("prefill.chunk", begin + chunk, begin + 2 * chunk, job, id="c2", service=service),
        span("prefill.first_token", begin + 2 * chunk, begin + 2 * chunk + 1, job, service=service),
    ]


HANDED_OVER = (("placed", "disaggregated", 6.0), ("accepted", "decode", 8.0))


def test_a_request_that_is_handed_over() -> None:
    found = split_ttft(gateway(58, HANDED_OVER) + worker(10))
    assert found is not None and not found.clock_suspect and found.missing == ()
    assert {name: ns / MS for name, ns in found.parts} == {
        "receive": 1, "parse": 1, "render": 1, "admit": 1, "retried": 0, "place": 2, "reserve": 2,
        "bus_out": 2, "prefill_queue": 2, "fetch": 1, "compute": 40, "sample": 1, "bus_back": 4,
        "emit": 2,
    }  # fmt: skip
    assert found.total_ns == 60 * MS
    assert tuple(name for name, _ in found.parts) == PARTS


@pytest.mark.parametrize("skew", [-50.0, -1.0, 0.5, 50.0])
def test_skew_moves_only_what_lies_on_the_bus(skew: float) -> None:
    true = split_ttft(gateway(58, HANDED_OVER) + worker(10))
    seen = split_ttft(gateway(58, HANDED_OVER) + worker(10 + skew))
    assert true is not None and seen is not None and not seen.clock_suspect
    changed = {name for (name, a), (_, b) in zip(true.parts, seen.parts, strict=True) if a != b}
    assert changed <= {"bus_out", "bus_back"}
    assert sum(ns for _, ns in seen.parts) == seen.total_ns == true.total_ns


def test_a_colocated_request_has_no_reservation_of_its_own() -> None:
    events = (("placed", "colocated", 6.0), ("accepted", "decode", 30.0))
    found = split_ttft(gateway(58, events) + worker(10, service="decode"))
    assert found is not None and not found.clock_suspect and found.missing == ()
    parts = dict(found.parts)
    assert (parts["reserve"], parts["bus_out"] / MS, parts["compute"] / MS) == (0, 4, 40)
    assert sum(parts.values()) == found.total_ns


def test_what_failed_attempts_took_is_a_part() -> None:
    spans = gateway(78, (("placed", "x", 26.0), ("accepted", "decode", 28.0)), begin=24)
    spans.append(span("gateway.attempt", 4, 23, "chat", id="first"))
    found = split_ttft(spans + worker(30))
    assert found is not None
    assert dict(found.parts)["retried"] == 20 * MS
    assert sum(ns for _, ns in found.parts) == found.total_ns


def test_spans_that_never_came_are_named_and_their_time_is_kept() -> None:
    found = split_ttft(gateway(58, ())[:1] + gateway(58, ())[-1:])
    assert found is not None
    assert found.missing == (
        "receive", "parse", "render", "admit", "retried", "place", "reserve", "prefill",
    )  # fmt: skip
    assert dict(found.parts)["bus_back"] == 58 * MS
    assert sum(ns for _, ns in found.parts) == found.total_ns


def test_a_worker_that_claims_more_than_there_was_is_suspect() -> None:
    found = split_ttft(gateway(20, HANDED_OVER) + worker(10, chunk=200))
    assert found is not None and found.clock_suspect
    assert all(ns >= 0 for _, ns in found.parts)
    assert sum(ns for _, ns in found.parts) == found.total_ns


def test_without_a_token_there_is_nothing_to_split() -> None:
    assert split_ttft([]) is None
    assert split_ttft([span("chat", 0, 5), span("gateway.parse", 1, 2, "chat")]) is None


def whole() -> list[Span]:
    return [
        *gateway(58, HANDED_OVER),
        *worker(10),
        span("decode.job", 7, 95, "gateway.attempt"),
        span("transfer.pull", 50, 62, "decode.job"),
        span("transfer.pull", 40, 90, "c1", id="copy", service="kvpool"),
        span("decode.verify", 62, 64, "decode.job"),
        span("decode.queue", 64, 64, "decode.job"),
        span("decode.generate", 66, 90, "decode.job"),
    ]


def test_the_critical_path_covers_the_request_without_a_gap() -> None:
    path = critical_path(whole())
    assert (path[0].start_ns, path[-1].end_ns) == (0, 100 * MS)
    assert all(one.end_ns == next_.start_ns for one, next_ in pairwise(path))
    named = [segment.span_id for segment in path if segment.span_id]
    assert named == [
        "gateway.parse", "gateway.render", "prefill.queue", "c1", "c2", "transfer.pull",
        "decode.verify", "decode.generate", "gateway.stream",
    ]  # fmt: skip
    assert critical_path([]) == []


def seen(token_s: float = 1e-3) -> WorkerSeen:
    load, cost = WorkerLoad(0, 0, 0, 0.0, 8, 8, 0), CostModel(2e-3, token_s, 0.0, 1e-2, 1e-3)
    return WorkerSeen(
        WorkerId("decode-0"), "decode", Epoch(1), "ready", 0.1, "m", 64, 16, load, cost, 0, 0
    )


def test_what_if_it_had_stayed_on_decode() -> None:
    spans = whole()
    spans.append(span("decode.reserve", 8, 8, "decode.job", attributes={"baton.pages.reused": 2}))
    split = split_ttft(spans)
    assert split is not None
    guess = what_if_colocated(spans, split, 132, seen())
    assert guess is not None
    assert (guess.new_tokens, guess.cached_tokens, guess.decode) == (100, 32, "decode-0")
    prefill_ms = 1e3 * chunked_prefill_s(seen().cost, 100, 32, 132)
    assert guess.prefill_ms == pytest.approx(prefill_ms)
    around_ms = 1 + 1 + 1 + 1 + 2 + 2 + 4 + 2
    assert guess.ttft_ms == pytest.approx(around_ms + prefill_ms)
    assert guess.actual_ttft_ms == 60.0
    assert guess.handoff_ms == pytest.approx(66 - 54)


def test_no_guess_without_costs_or_without_a_handover() -> None:
    split = split_ttft(whole())
    assert split is not None
    assert what_if_colocated(whole(), split, 100, seen(token_s=0.0)) is None
    stayed = gateway(58, HANDED_OVER) + worker(10, service="decode")
    assert what_if_colocated(stayed, split, 100, seen()) is None
