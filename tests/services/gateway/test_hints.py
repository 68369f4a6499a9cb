"""Hints in every dialect, and what the scheduler is told of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.gateway.core import actions as act
from services.gateway.core import events as ev
from services.gateway.core.events import Hints, Role
from services.gateway.hints import joined, read_body, read_headers
from shared.errors import ClientError, Code
from shared.wire.requests import PrefillJob
from shared.wire.sampling import Sampling
from tests.services.gateway.core.builders import DECODE, SAMPLING, Core, R


def sampling(**changes: Any) -> Sampling:
    return replace(SAMPLING, **changes)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Hints()),
        ({"x-baton-affinity": "tree-7"}, Hints(affinity_key="tree-7")),
        ({"x-session-id": "s", "x-session-affinity": "s"}, Hints(affinity_key="s")),
        ({"x-baton-affinity": ""}, Hints()),
        ({"x-baton-affinity": "not a key"}, Hints()),
        ({"x-baton-affinity": "x" * 257}, Hints()),
        ({"x-baton-ttft-slo-ms": "250"}, Hints(ttft_slo_s=0.25)),
        ({"x-baton-tpot-slo-ms": "40"}, Hints(tpot_slo_s=0.04)),
    ],
)
def test_headers(fields: dict[str, str], expected: Hints) -> None:
    assert read_headers(fields) == expected


@pytest.mark.parametrize("value", ["", "0", "-5", "1.5", "1e3", "600001", "nan", "٣", " 5"])
@pytest.mark.parametrize("name", ["x-baton-ttft-slo-ms", "x-baton-tpot-slo-ms"])
def test_an_objective_is_a_whole_number_of_milliseconds(name: str, value: str) -> None:
    with pytest.raises(ClientError) as caught:
        read_headers({name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, Hints()),
        ({"prompt_cache_key": None, "nvext": None}, Hints()),
        ({"prompt_cache_key": "k"}, Hints(affinity_key="k")),
        ({"session_id": "k"}, Hints(affinity_key="k")),
        ({"nvext": {"session_control": {"session_id": "k"}}}, Hints(affinity_key="k")),
        ({"nvext": {"agent_hints": {"osl": 12, "other": 1}}}, Hints(expected_tokens=12)),
    ],
)
def test_bodies(body: dict[str, object], expected: Hints) -> None:
    assert read_body(body) == expected


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt_cache_key": 7}, "prompt_cache_key"),
        ({"prompt_cache_key": ""}, "prompt_cache_key"),
        ({"session_id": "a b"}, "session_id"),
        ({"session_id": "x" * 300}, "session_id"),
        ({"nvext": []}, "nvext"),
        ({"nvext": {"session_control": "k"}}, "nvext.session_control"),
        ({"nvext": {"agent_hints": {"osl": True}}}, "nvext.agent_hints.osl"),
        ({"nvext": {"agent_hints": {"osl": 0}}}, "nvext.agent_hints.osl"),
        ({"nvext": {"agent_hints": {"osl": 1.5}}}, "nvext.agent_hints.osl"),
    ],
)
def test_a_body_that_is_wrong_names_its_field(body: dict[str, object], param: str) -> None:
    with pytest.raises(ClientError) as caught:
        read_body(body)
    assert caught.value.param == param


def test_two_names_of_one_session_must_agree() -> None:
    same = joined(Hints(affinity_key="k"), Hints(affinity_key="k"), sampling(), 8)
    assert same.affinity_key == "k"
    with pytest.raises(ClientError) as caught:
        joined(Hints(affinity_key="k"), Hints(affinity_key="other"), sampling(), 8)
    assert caught.value.code is Code.CONFLICTING_HINTS
    with pytest.raises(ClientError):
        read_body({"prompt_cache_key": "a", "session_id": "b"})


def test_a_limit_is_a_forecast_only_where_nothing_else_ends_the_answer() -> None:
    assert joined(Hints(), Hints(), sampling(), 400).expected_tokens == 0
    assert joined(Hints(), Hints(), sampling(ignore_eos=True), 400).expected_tokens == 400
    assert joined(Hints(), Hints(), sampling(min_tokens=400), 400).expected_tokens == 400
    assert joined(Hints(), Hints(expected_tokens=30), sampling(), 400).expected_tokens == 30
    assert joined(Hints(), Hints(expected_tokens=900), sampling(), 400).expected_tokens == 400


def test_the_scheduler_is_told_and_a_later_attempt_expects_what_is_left() -> None:
    core = Core()
    hints = Hints(affinity_key="k", expected_tokens=10, ttft_slo_s=0.5, tpot_slo_s=0.05)
    asked = SAMPLING.max_tokens
    opened = ev.Opened(R, tuple(range(20)), SAMPLING, "auto", core.now + 60)
    core.feed(replace(opened, hints=hints, priority=7))
    (first,) = core.all(act.Place)
    told = first.message
    assert (told.affinity_key, told.ttft_slo_s, told.tpot_slo_s) == ("k", 0.5, 0.05)
    assert (told.expected_output_tokens, told.max_tokens) == (10, asked)
    assert told.tenant == "public"
    core.run()
    (job,) = [a.message for a in core.all(act.SendJob) if a.role is Role.PREFILL]
    assert isinstance(job, PrefillJob) and job.priority == 7
    core.chunk(0, 1, 2, 3)
    core.died(DECODE, "decode")
    again = core.all(act.Place)[-1].message
    assert (again.attempt, again.expected_output_tokens) == (2, 7)
