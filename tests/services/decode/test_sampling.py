"""Penalties, bias, bans and log-probabilities are the same on every path and in every attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.decode.core.ledger import TOLD_TOKENS
from shared.wire.requests import DecodeJob, TokenEntry
from shared.wire.sampling import Sampling

from .prefill_side import undisturbed
from .rig import Rig, job, rules

WISHES = {
    "penalties": Sampling(
        0.9, 1.0, 5, 12, (), presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1
    ),
    "greedy penalties": Sampling(0.0, 1.0, 5, 12, (), frequency_penalty=1.5),
    "bias": Sampling(0.7, 1.0, 5, 12, (), bias_ids=(60, 61), biases=(-100.0, 2.0), top_k=4),
    "late stop": Sampling(0.8, 1.0, 5, 40, tuple(range(40, 70)), min_tokens=9),
    "logprobs": Sampling(0.8, 1.0, 5, 12, (), logprobs=3),
}


def wanted_by(name: str, request: str = "r1", **more: object) -> DecodeJob:
    return replace(job(request, **more), sampling=WISHES[name])  # type: ignore[arg-type]


def check(rig: Rig, wanted: DecodeJob) -> None:
    rig.finished(wanted)
    if wanted.sampling.logprobs is not None:
        log = rig.logs[wanted.request]
        assert sorted(log.told) == sorted(log.tokens)
        assert all(len(told.top_ids) == 3 for told in log.told.values())
        assert all(told.top_ids[0] == log.tokens[at] for at, told in log.told.items())


@pytest.mark.parametrize("name", sorted(WISHES))
def test_handed_over_colocated_and_resumed_attempts_agree(name: str) -> None:
    handed, together, resumed = Rig(), Rig(), Rig()
    wanted = wanted_by(name)
    handed.handoff(wanted)
    check(handed, wanted)
    alone = wanted_by(name, prefill=None)
    together.submit(alone)
    together.run()
    check(together, alone)
    tokens, finish = undisturbed(wanted)
    sampling = replace(wanted.sampling, max_tokens=wanted.sampling.max_tokens - 5)
    rest = replace(
        wanted_by(name, tokens=[*wanted.tokens, *tokens[:5]], first_index=5),
        sampling=sampling,
        attempt=wanted.attempt + 1,
    )
    resumed.handoff(rest)
    log = resumed.logs[rest.request]
    assert (log.text(5), log.finish) == (tokens[5:], finish)
    for rig in (handed, together, resumed):
        rig.at_rest()


@pytest.mark.parametrize("name", sorted(WISHES))
def test_preemption_changes_nothing(name: str) -> None:
    rig = Rig(pages=24, limits=rules(forecast=False))
    jobs = [wanted_by(name, f"r{n}", tokens=[n, 3, 5, 7], prefill=None) for n in range(6)]
    jobs = [replace(one, sampling=replace(one.sampling, max_tokens=30)) for one in jobs]
    for one in jobs:
        rig.submit(one)
    rig.run()
    for one in jobs:
        check(rig, one)
    assert name == "late stop" or rig.machine.counts["preemptions"] > 0
    rig.at_rest()


def test_a_lost_first_token_is_asked_of_decode_with_its_logprobs() -> None:
    rig = Rig()
    wanted = wanted_by("logprobs")
    rig.submit(wanted)
    for ready in rig.prefill.compute(wanted, 8):
        rig.announce(ready)
    rig.run()
    whole = rig.resend()
    assert isinstance(whole, TokenEntry)
    assert len(whole.token_ids) == len(whole.logprobs) == wanted.sampling.max_tokens
    assert list(whole.token_ids) == undisturbed(wanted)[0]


def test_a_first_token_without_its_logprobs_is_drawn_again() -> None:
    rig = Rig()
    wanted = wanted_by("logprobs")
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 8)
    rig.prefill_failed()
    for one in ready:
        rig.announce(replace(one, first_logprobs=None))
    rig.run()
    check(rig, wanted)


def test_answers_with_logprobs_come_in_parts() -> None:
    rig = Rig(pages=200)
    wanted = wanted_by("logprobs", prefill=None)
    wanted = replace(wanted, sampling=replace(wanted.sampling, max_tokens=TOLD_TOKENS + 9))
    rig.submit(wanted)
    rig.run()
    first, rest = rig.resend(index=0), rig.resend(index=TOLD_TOKENS)
    assert isinstance(first, TokenEntry) and isinstance(rest, TokenEntry)
    assert (len(first.token_ids), first.finish) == (TOLD_TOKENS, None)
    assert (len(rest.token_ids), rest.finish) == (9, "length")
    assert [*first.token_ids, *rest.token_ids] == undisturbed(wanted)[0]


def test_logs_with_logprobs_are_bounded() -> None:
    rig = Rig(limits=rules(log_told_tokens=30))
    for number in range(4):
        rig.submit(wanted_by("logprobs", f"r{number}", prefill=None))
        rig.run()
    found = [isinstance(rig.resend(f"r{number}"), TokenEntry) for number in range(4)]
    assert found == [False, False, True, True]


def test_further_choices_share_the_pages_that_are_being_sealed() -> None:
    """They come while the first one's prompt is computed but not yet sealed: nothing is computed
    twice but the last block."""
    rig = Rig(limits=rules(step_tokens=64))
    first = job("r1", tokens=41, prefill=None)
    rig.submit(first)
    rig.happen(rig.work.pop(0))
    assert rig.logs[first.request].tokens and rig.machine.sealing.pending == 10
    others = [
        replace(job(f"r1-{n}", tokens=41, prefill=None, temperature=0.9), attempt=first.attempt)
        for n in range(1, 4)
    ]
    for one in others:
        assert rig.submit(one) is None
    rig.run()
    for one in (first, *others):
        rig.finished(one)
    assert [rig.logs[one.request].cached_tokens for one in others] == [40, 40, 40]
    rig.at_rest()
