"""`loadgen why` explains a placement from its span alone."""

from __future__ import annotations

from typing import Any

from loadgen import why


def span(**attributes: object) -> dict[str, Any]:
    given = {
        "baton.request.id": "01ABC",
        "baton.attempt": 1,
        "baton.place.policy": "baton",
        "baton.place.route": "disaggregated",
        "baton.place.route_reason": "least score of 2: 90 blocks cached on prefill-1",
        "baton.place.estimate_ttft_s": 0.0123,
        "baton.place.runner_up": "prefill-0 + decode-0",
        "baton.place.margin": 0.5,
        **attributes,
    }
    chosen = {"pair": "prefill-1 + decode-0", "score_s": 0.1, "lost": "", "note": "90 blocks"}
    other = {"pair": "prefill-0 + decode-0", "score_s": 0.6, "lost": "prefill_s +500.0 ms"}
    return {
        "name": "scheduler.place",
        "start_ns": 5,
        "attributes": given,
        "events": [
            {"name": "candidate", "attributes": {**other, "prefill_s": 0.6, "wait_s": 0.0}},
            {"name": "candidate", "attributes": {**chosen, "prefill_s": 0.1, "wait_s": 0.0}},
        ],
    }


def test_a_sentence_and_a_table_with_the_chosen_one_first() -> None:
    text = why.explain(span())
    sentence, blank, header, first, second = text.splitlines()
    assert blank == ""
    assert sentence == (
        "Request 01ABC ran disaggregated on prefill-1 + decode-0, chosen by baton: least score of "
        "2: 90 blocks cached on prefill-1. A first token was expected after 12.3 ms. Next was "
        "prefill-0 + decode-0, +500.0 ms."
    )
    assert header.split() == ["pair", "score", "ms", "prefill", "ms", "why", "not"], "no idle term"
    assert first.startswith("*") and "100.0" in first and "90 blocks" in first
    assert "600.0" in second and "prefill_s +500.0 ms" in second


def test_copied_blocks_other_units_and_refusals_are_told() -> None:
    fetched = span(**{"baton.place.fetch_blocks": 7, "baton.place.fetch_from": "kvpool-0"})
    assert "with 7 blocks copied from kvpool-0" in why.explain(fetched)
    rival = why.explain(span(**{"baton.place.policy": "dynamo_cost", "baton.place.margin": 12.0}))
    assert "+12." in rival and "score ms" not in rival
    refused = span(**{"baton.place.refused": "no_worker", "baton.attempt": 2})
    assert why.explain(refused).startswith("Request 01ABC, attempt 2, was not placed: no_worker.")


def test_the_placements_of_a_trace_come_in_order() -> None:
    late, early = span(), span()
    early["start_ns"] = 1
    other = {"name": "prefill.queue", "start_ns": 0}
    assert why.placements([late, other, early]) == [early, late]
