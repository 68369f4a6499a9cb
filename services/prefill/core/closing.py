"""The one way in which a job ends, whatever the reason. Applying it twice changes nothing.

Knows which parties hear of it; the pages go back through the cache's leases and quarantine.
"""

from __future__ import annotations

from services.prefill.core.actions import FailJob, JobClosed, Traced
from services.prefill.core.jobs import Job, Phase
from services.prefill.core.state import State, give_back
from shared.errors import Code
from shared.wire.requests import JobFailed, PrefillFailed


def close(state: State, job: Job, now: float, outcome: str, code: Code | None = None) -> None:
    """End the job: stop its work, end its lease, give its pages back (pages that the engine or a
    pull is working on follow when that ends). With a `code` gateway and decode are told."""
    if job.ended:
        return
    job.ended = True
    state.jobs.remove(job)
    state.jobs.remember(job.order.request, job.order.attempt, job.first)
    state.counts[f"jobs_{outcome}"] += 1
    state.diary.note(job.key, now, f"{outcome} while {job.phase}{f' ({code})' if code else ''}")
    if code is not None:
        state.out.append(_failure(state, job, code))
    state.out.append(_span(job, now, outcome))
    state.out.append(JobClosed(job.order.request, job.order.attempt, outcome, code))
    if job.busy:
        state.jobs.leaving[job.key] = job
    else:
        give_back(state, job)
    state.cache.end_lease(job.lease)


def depart(state: State, job: Job) -> None:
    """The engine or pull that an ended job was waiting for is over: its pages can go."""
    job.busy = False
    if job.ended:
        state.jobs.leaving.pop(job.key, None)
        give_back(state, job)


def _failure(state: State, job: Job, code: Code) -> FailJob:
    order = job.order
    message = f"prefill gave up while {job.phase}"
    return FailJob(
        gateway=order.gateway,
        failed=JobFailed(
            order.request, order.attempt, state.me.worker, state.me.epoch, code, message
        ),
        decode=order.decode,
        notice=PrefillFailed(order.request, order.attempt, code),
    )


def _span(job: Job, now: float, outcome: str) -> Traced:
    attributes: dict[str, str | int | float | bool] = {
        "baton.attempt": job.order.attempt,
        "baton.prompt_tokens": job.prompt_tokens,
        "baton.cached_tokens": job.cached_tokens,
        "baton.outcome": outcome,
        "baton.finished": job.phase is Phase.HANDED,
    }
    key = job.key
    return Traced(key.request, key.attempt, "prefill.job", job.arrived_s, now, attributes)
