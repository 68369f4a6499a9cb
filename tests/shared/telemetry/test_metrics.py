"""Metrics by name: asked for twice they are one, and their names obey the rules."""

from __future__ import annotations

import pytest

from shared.telemetry.metrics import TIME_BUCKETS_S, TOKEN_BUCKETS_S, Metrics


def test_what_is_counted_is_rendered() -> None:
    metrics = Metrics()
    metrics.counter("baton_requests_total", "Requests.", ("route",)).labels("colocated").inc(3)
    metrics.gauge("baton_pages", "Pages.", ("state",)).labels("free").set(7)
    metrics.histogram("baton_ttft_seconds", "TTFT.", buckets=TOKEN_BUCKETS_S).observe(0.2)
    text = metrics.render()[0].decode()
    assert 'baton_requests_total{route="colocated"} 3.0' in text
    assert 'baton_pages{state="free"} 7.0' in text
    assert 'baton_ttft_seconds_bucket{le="2.5"} 1.0' in text
    assert metrics.value("baton_requests_total", route="colocated") == 3
    assert metrics.value("baton_requests_total", route="other") == 0


def test_a_name_is_made_once() -> None:
    metrics = Metrics()
    assert metrics.counter("baton_x_total", "X.") is metrics.counter("baton_x_total", "X.")
    with pytest.raises(ValueError, match="another kind or other labels"):
        metrics.counter("baton_x_total", "X.", ("why",))
    with pytest.raises(ValueError, match="another kind or other labels"):
        metrics.gauge("baton_x_total", "X.")


def test_names_obey_the_rules() -> None:
    metrics = Metrics()
    with pytest.raises(ValueError, match="must start with baton_"):
        metrics.gauge("pages", "Pages.")
    with pytest.raises(ValueError, match="must end with _total"):
        metrics.counter("baton_requests", "Requests.")


def test_two_processes_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.counter("baton_x_total", "X.").inc()
    assert second.value("baton_x_total") == 0


def test_buckets_rise() -> None:
    assert list(TIME_BUCKETS_S) == sorted(set(TIME_BUCKETS_S))
    assert list(TOKEN_BUCKETS_S) == sorted(set(TOKEN_BUCKETS_S))
