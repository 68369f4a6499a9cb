"""The prefill machine: life of a job, duplicates and attempts, cancel."""

from __future__ import annotations

import dataclasses

import pytest

from services.prefill.core.actions import (
    JobClosed,
    Offer,
    PublishBlocks,
    RunStep,
    SendPages,
)
from services.prefill.core.events import JobArrived, PeerLost
from shared.errors import Code
from shared.ids import Epoch, RequestId, WorkerId
from shared.wire.requests import (
    Accepted,
    Acknowledged,
    Ended,
    Refused,
)
from shared.wire.workers import WorkerLost
from tests.services.prefill.rig import (
    BLOCK,
    LONG,
    POOL,
    Rig,
    code_of,
    expected_token,
    job,
    limits,
)


def test_a_job_is_computed_in_chunks_and_handed_over_page_by_page() -> None:
    rig = Rig()
    assert rig.start(job("a", LONG)) == Accepted(WorkerId("prefill-0"), Epoch(3))
    rig.settle()
    chunks = [[len(item.tokens) for item in step.items] for step in rig.seen(RunStep)]
    assert chunks == [[16], [16], [11]]
    ready = [action.ready for action in rig.seen(SendPages)]
    assert [len(message.pages) for message in ready] == [4, 4, 3]
    assert [message.first_token for message in ready[:2]] == [None, None]
    entry = rig.first_tokens()[RequestId("a")]
    assert entry.token_ids == (expected_token(LONG),)
    assert ready[2].first_token == entry.token_ids[0]
    assert (entry.index, entry.finish, entry.cached_tokens) == (0, None, 0)
    refs = rig.announced("a")
    assert [ref.position for ref in refs] == list(range(11))
    assert [ref.tokens for ref in refs] == [BLOCK] * 10 + [3]
    assert refs[-1].block is None
    assert rig.held == 11
    assert rig.release("a") == Acknowledged()
    assert rig.held == 0
    assert rig.machine.idle


def test_a_later_attempt_goes_on_at_its_index() -> None:
    rig = Rig()
    rig.start(dataclasses.replace(job("a", LONG, attempt=2), first_index=5))
    assert rig.engine_work
    rig.settle()
    draws = [item.draw for step in rig.seen(RunStep) for item in step.items]
    assert [draw.position for draw in draws if draw is not None] == [5]
    assert rig.first_tokens()[RequestId("a")].index == 5


def test_a_new_tail_is_offered_with_its_cached_head() -> None:
    rig = Rig()
    rig.start(job("a", LONG[:20]))
    rig.settle()
    rig.start(job("b", LONG, pool=POOL))
    rig.settle()
    assert len(rig.pool) == 10
    rig.start(job("c", LONG, pool=POOL))
    rig.settle()
    assert len(rig.seen(Offer)) == 1


def test_tokens_leave_before_the_pages_are_summed() -> None:
    rig = Rig()
    rig.start(job("a", LONG[:8]))
    rig.turn_engine()
    assert RequestId("a") in rig.first_tokens()
    assert not rig.seen(SendPages)
    assert rig.engine_work


def test_the_next_step_starts_while_pages_wait_for_decode() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.turn_engine()
    rig.turn_engine()
    assert rig.unanswered
    assert isinstance(rig.engine_work[0], RunStep)


def test_several_short_jobs_share_a_step() -> None:
    rig = Rig()
    rig.start(job("z", LONG[:16]))
    for name, start in (("a", 0), ("b", 30), ("c", 60)):
        rig.start(job(name, range(start, start + 5)))
    rig.settle()
    assert [len(step.items) for step in rig.seen(RunStep)] == [1, 3]


def test_a_cached_prefix_is_announced_before_anything_is_computed() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    rig.release("a")
    rig.start(job("b", LONG))
    assert [len(action.ready.pages) for action in rig.unanswered] == [10]
    rig.settle()
    entry = rig.first_tokens()[RequestId("b")]
    assert entry.token_ids == (expected_token(LONG),)
    assert entry.cached_tokens == 40


def test_the_cached_prefix_never_covers_the_last_prompt_token() -> None:
    rig = Rig()
    prompt = LONG[: 4 * BLOCK]
    for name in ("a", "b"):
        rig.start(job(name, prompt))
        rig.settle()
        rig.release(name)
    first = rig.first_tokens()
    assert first[RequestId("b")].cached_tokens == 3 * BLOCK
    assert first[RequestId("a")].token_ids == first[RequestId("b")].token_ids


def test_siblings_that_arrive_together_share_the_prefix() -> None:
    rig = Rig(limits=limits(chunk_tokens=64))
    rig.start(job("x", (1, 2, 3)))
    rig.start(job("a", LONG))
    rig.start(job("b", LONG))
    rig.settle()
    first = rig.first_tokens()
    assert first[RequestId("b")].cached_tokens == 40
    assert first[RequestId("a")].token_ids == first[RequestId("b")].token_ids
    assert rig.machine.counters["prompt_tokens"] == 3 + 43 + 3


def test_another_namespace_finds_nothing() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    rig.start(job("b", LONG, namespace="other"))
    rig.settle()
    assert rig.first_tokens()[RequestId("b")].cached_tokens == 0


def test_sealed_blocks_are_published_once_and_in_order() -> None:
    rig = Rig()
    for name in ("a", "b"):
        rig.start(job(name, LONG))
        rig.settle()
    stored = [b for action in rig.seen(PublishBlocks) for e in action.events for b in e.blocks]
    assert len(stored) == 10
    assert stored == list(rig.cache.blocks())


def test_a_duplicate_job_gets_the_same_answer_and_runs_once() -> None:
    rig = Rig()
    first = rig.start(job("a", LONG))
    assert rig.start(job("a", LONG)) == first
    rig.settle()
    assert rig.start(job("a", LONG)) == first
    assert rig.machine.counters["prompt_tokens"] == 43
    rig.release("a")
    assert code_of(rig.start(job("a", LONG))) == Code.STALE


def test_a_newer_attempt_ends_the_older_one() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    assert isinstance(rig.start(job("a", LONG, attempt=2)), Accepted)
    assert code_of(rig.start(job("a", LONG))) == Code.STALE
    rig.settle()
    assert {e.attempt for e in rig.first_tokens().values()} == {2}
    assert {closed.outcome for closed in rig.seen(JobClosed)} == {"superseded"}
    rig.release("a", attempt=2)
    assert rig.machine.idle
    assert rig.held == 0


def test_a_cancel_that_overtakes_its_job_wins() -> None:
    rig = Rig()
    assert isinstance(rig.cancel("a", 2), Ended)
    assert code_of(rig.start(job("a", LONG, attempt=2))) == Code.STALE
    assert isinstance(rig.start(job("a", LONG, attempt=3)), Accepted)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"tokens": ()}, Code.INVALID_PARAMETER),
        ({"tokens": (1, 512)}, Code.INVALID_PARAMETER),
        ({"tokens": (-1, 5)}, Code.INVALID_PARAMETER),
        ({"tokens": (1,), "max_tokens": 0}, Code.INVALID_PARAMETER),
        ({"tokens": (1,) * 4097}, Code.CONTEXT_LENGTH_EXCEEDED),
        ({"tokens": (1,), "deadline_s": 0.0}, Code.DEADLINE_EXCEEDED),
        ({"tokens": (1,) * (64 * BLOCK + 1)}, Code.KV_PAGES_EXHAUSTED),
    ],
)
def test_a_job_that_cannot_run_is_refused_at_the_door(change: dict[str, object], code: str) -> None:
    rig = Rig()
    assert code_of(rig.start(job("a", **change))) == code  # type: ignore[arg-type]
    assert rig.machine.idle


def test_a_full_queue_refuses_with_a_time_to_wait() -> None:
    rig = Rig(limits=limits(queue_limit=2))
    answers = [rig.start(job(f"r{i}", range(i, i + 30))) for i in range(6)]
    refused = answers[-1]
    assert isinstance(refused, Refused)
    assert refused.code == Code.QUEUE_FULL
    assert refused.retry_after_s is not None
    assert 1.0 <= refused.retry_after_s <= 30.0
    rig.settle()
    assert code_of(rig.start(job("r5", range(5, 35)))) == Code.STALE, "a late copy, for nobody"
    assert isinstance(rig.start(job("r5", range(5, 35), attempt=2)), Accepted)


@pytest.mark.parametrize("turns", range(7))
def test_a_cancel_at_any_point_gives_everything_back(turns: int) -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    for _ in range(turns):
        if rig.engine_work:
            rig.turn_engine()
    assert rig.cancel("a") == Ended(RequestId("a"), job("a", LONG).attempt)
    assert rig.cancel("a") == Ended(RequestId("a"), job("a", LONG).attempt)
    rig.settle()
    assert rig.held == 0
    assert rig.machine.idle
    assert not rig.failures()


def test_a_cancel_in_mid_chunk_publishes_nothing_unsealed() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.cancel("a")
    rig.settle()
    assert not rig.seen(SendPages)
    assert not rig.seen(PublishBlocks)


def test_a_job_for_another_incarnation_is_refused_and_ends_nothing() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    newer = dataclasses.replace(job("a", LONG, attempt=2), epoch=Epoch(2))
    assert code_of(rig.start(newer)) == "worker_lost"
    assert rig.machine.counters["fenced_epoch"] == 1
    rig.settle()
    assert rig.first_tokens()[RequestId("a")].attempt == 1
    assert rig.start(dataclasses.replace(job("b", LONG), epoch=Epoch(3))) == Accepted(
        WorkerId("prefill-0"), Epoch(3)
    )


@pytest.mark.parametrize("late", [4, None])
def test_a_job_of_an_older_gateway_is_refused(late: int | None) -> None:
    """Spoken late, or before that gateway had an epoch: nobody would read its pages."""
    rig = Rig()

    def arrive(request: str, epoch: int | None) -> object:
        order = job(request, LONG)
        return rig.ask(lambda call: JobArrived(call, order, "t", "p", "", epoch))

    assert isinstance(arrive("a", 5), Accepted)
    assert code_of(arrive("b", late)) == Code.STALE
    assert rig.machine.counters["fenced_epoch"] == 1
    lost = WorkerLost(job("a", LONG).gateway, "gateway", Epoch(6), Epoch(1), "replaced")
    rig.send(PeerLost(lost))
    assert code_of(arrive("c", 6)) == Code.STALE
    assert isinstance(arrive("d", 7), Accepted)
