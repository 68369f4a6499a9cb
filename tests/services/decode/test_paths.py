"""Disaggregated, colocated, warm and resumed: the same tokens on every path."""

from __future__ import annotations

import pytest

from services.decode.core import actions as do
from services.decode.core.report import load
from shared.ids import Epoch, WorkerId
from shared.wire.requests import Accepted, Acknowledged, LeaseKey
from shared.wire.workers import CostModel

from .prefill_side import ME, undisturbed
from .rig import GATEWAY, Rig, job, rules, span_names


def test_a_handoff_gives_the_undisturbed_tokens_and_returns_the_lease() -> None:
    rig = Rig()
    wanted = job(temperature=0.8)
    ready = rig.handoff(wanted)
    assert len(ready) == 3
    rig.finished(wanted)
    assert rig.prefill.released == [(LeaseKey(wanted.request, wanted.attempt), "committed")]
    assert rig.machine.counts["commits"] == 1
    rig.at_rest()


def test_pages_of_early_chunks_are_pulled_while_prefill_still_computes() -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 8)
    rig.announce(ready[0])
    assert [type(action) for action in rig.work] == [do.Pull]
    rig.run()
    assert rig.pulled_pages == 2
    assert not rig.chunks


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_announcements_in_any_order_and_twice_place_pages_by_position(
    order: tuple[int, ...],
) -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 8)
    rig.first_token(wanted, ready)
    for chunk in order:
        assert rig.announce(ready[chunk], ready[chunk]) == [Acknowledged(), Acknowledged()]
    rig.run()
    assert rig.pulled_pages == 6
    rig.finished(wanted)
    rig.at_rest()


@pytest.mark.parametrize("length", [1, 4, 5, 16, 40, 61])
def test_colocated_computes_the_prompt_in_chunks_of_the_budget(length: int) -> None:
    rig = Rig()
    wanted = job(tokens=length, prefill=None)
    assert rig.submit(wanted) == Accepted(WorkerId("decode-0"), Epoch(7))
    rig.run()
    rig.finished(wanted)
    assert rig.logs[wanted.request].cached_tokens == 0
    rig.at_rest()
    assert {"decode.reserve", "prefill.queue", "decode.generate", "kv.settle"} <= set(
        span_names(rig)
    )
    assert "transfer.pull" not in span_names(rig)


def test_a_warm_prompt_reports_its_cached_tokens_and_computes_the_rest() -> None:
    rig = Rig()
    first = job(tokens=40, prefill=None)
    rig.submit(first)
    rig.run()
    second = job("r2", tokens=40, prefill=None)
    rig.submit(second)
    rig.run()
    rig.finished(second)
    # The last block holds the last token, which is always computed.
    assert rig.logs[second.request].cached_tokens == 36


def test_generated_blocks_are_cached_for_the_next_turn() -> None:
    rig = Rig()
    first = job(tokens=20, prefill=None, max_tokens=13)
    rig.submit(first)
    rig.run()
    answer, _ = undisturbed(first)
    second = job("r2", tokens=[*first.tokens, *answer, 9, 9], prefill=None)
    rig.submit(second)
    rig.run()
    rig.finished(second)
    assert rig.logs[second.request].cached_tokens == 32


def test_one_step_serves_all_running_sequences_and_one_chunk_message_a_gateway() -> None:
    rig = Rig()
    others = WorkerId("gateway-1")
    jobs = [job(f"r{n}", tokens=[n, 3], prefill=None) for n in range(3)]
    jobs.append(job("r3", tokens=[8, 8], prefill=None, gateway=others))
    for one in jobs:
        rig.submit(one)
    rig.run()
    for one in jobs:
        rig.finished(one)
    widest = max(len(chunk.entries) for chunk in rig.chunks if chunk.gateway == GATEWAY)
    assert widest == 3
    assert all(len(chunk.entries) == 1 for chunk in rig.chunks if chunk.gateway == others)


def test_a_long_prompt_never_stalls_a_running_sequence() -> None:
    rig = Rig(limits=rules(step_tokens=8))
    running = job("r1", tokens=4, prefill=None, max_tokens=30)
    rig.submit(running)
    for _ in range(3):
        rig.happen(rig.work.pop(0))
    rig.submit(job("r2", tokens=60, prefill=None))
    steps = 0
    while len(rig.logs[running.request].tokens) < 20:
        action = rig.work.pop(0)
        if isinstance(action, do.RunStep):
            steps += 1
            assert action.items[0].tokens and len(action.items[0].tokens) == 1
            assert sum(len(item.tokens) for item in action.items) <= 8
        rig.happen(action)
    assert steps <= 20


def test_work_left_is_counted_in_chunks_beside_what_runs() -> None:
    """Sixty tokens: seven of the eight in a step are for the prompt, twelve alone."""
    cost = CostModel(1.0, 0.1, 0.0, 2.0, 0.0)
    alone = Rig(limits=rules(step_tokens=8, alone_tokens=12))
    alone.submit(job("r1", tokens=60, prefill=None))
    told = load(alone.machine, cost)
    assert (told.step_tokens, told.work_left_s) == (8, pytest.approx(5 * 1.0 + 6.0))
    beside = Rig(limits=rules(step_tokens=8, alone_tokens=12))
    beside.submit(job("r1", tokens=4, prefill=None, max_tokens=30))
    for _ in range(3):
        beside.happen(beside.work.pop(0))
    beside.submit(job("r2", tokens=[9] * 60, prefill=None))
    assert load(beside.machine, cost).work_left_s == pytest.approx(9 * 2.0)


def test_resume_continues_at_its_index_with_the_same_tokens() -> None:
    whole = job(temperature=1.0, max_tokens=9)
    expected, _ = undisturbed(whole)
    prompt = [*whole.tokens, *expected[:4]]
    for prefill in (None, ME):
        rig = Rig()
        rest = job(
            tokens=prompt,
            attempt=2,
            first_index=4,
            max_tokens=5,
            temperature=1.0,
            prefill=prefill,
        )
        if prefill is None:
            rig.submit(rest)
            rig.run()
        else:
            rig.handoff(rest)
        assert rig.logs[rest.request].text(4) == expected[4:]
        rig.at_rest()


def test_a_stop_token_is_emitted_and_ends_the_sequence() -> None:
    expected, _ = undisturbed(job(prefill=None))
    rig = Rig()
    wanted = job(prefill=None, stop=(expected[3],))
    rig.submit(wanted)
    rig.run()
    rig.finished(wanted)
    assert rig.logs[wanted.request].finish == "stop"
    assert len(rig.logs[wanted.request].tokens) <= 4
