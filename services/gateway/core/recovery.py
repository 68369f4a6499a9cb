"""What happens when an attempt cannot go on: undo it, and place another one or give up.

A *refusal* means nothing ran: try elsewhere or wait, inside a patience. A *failure* means a
worker had begun: at most `Policy.attempts` of those in a row without progress, inside the client's
one deadline. Pure.
"""

from __future__ import annotations

from typing import Final

from services.gateway.core.actions import Action, Cancel, EndAttempt, Fail, ReportEnd
from services.gateway.core.events import Silence
from services.gateway.core.placing import place, start_attempt
from services.gateway.core.request import Policy, Request
from shared.errors import Code
from shared.wire.requests import CancelRequest, PlacementEnded, Refused, WorkerRef

DEFAULT_RETRY_S: Final = 2.0
TOO_LARGE: Final = "the request does not fit the control plane"
_HOPELESS: Final = frozenset(
    {
        Code.INVALID_PARAMETER,
        Code.UNSUPPORTED_PARAMETER,
        Code.FORBIDDEN_PARAMETER,
        Code.CONTEXT_LENGTH_EXCEEDED,
        Code.MODEL_NOT_FOUND,
        Code.BODY_TOO_LARGE,
        Code.DEADLINE_EXCEEDED,
        Code.INCOMPATIBLE_WORKERS,
        Code.POISON_REQUEST,
    }
)
"""Another worker would say the same."""
_BUSY: Final = frozenset({Code.QUEUE_FULL, Code.KV_PAGES_EXHAUSTED})
"""The same worker may say yes in a moment."""


def code_of(text: str) -> Code:
    """The closed code of a peer's answer; anything else reads as internal."""
    try:
        return Code(text)
    except ValueError:
        return Code.INTERNAL


def end_attempt(
    request: Request,
    outcome: str,
    cause: str,
    failed: tuple[WorkerRef, ...],
    now: float,
) -> list[Action]:
    """Undo the current attempt everywhere: every possible holder, and the scheduler's charge."""
    request.note(now, f"ends: {outcome}")
    actions: list[Action] = [EndAttempt(request.id, request.attempt, outcome)]
    actions += cancel_holders(request, cause)
    actions.append(report(request, outcome, failed))
    request.holders = {}
    request.placement = None
    return actions


def report(
    request: Request,
    outcome: str,
    failed: tuple[WorkerRef, ...] = (),
) -> ReportEnd:
    """What the scheduler is told about the end of the current attempt."""
    ended = PlacementEnded(
        request=request.id,
        attempt=request.attempt,
        outcome=outcome,
        failed=failed,
        signature=request.signature,
        died=request.died if failed else (),
        emitted=request.emitted,
        ttft_s=request.ttft_s,
        tpot_s=request.tpot_s,
    )
    return ReportEnd(ended)


def cancel_holders(request: Request, cause: str) -> list[Action]:
    """A cancel to each worker that has, or may have, a share of the attempt."""
    message = CancelRequest(request.id, request.attempt, cause)
    return [Cancel(holder.role, holder.ref.worker, message) for holder in request.holders.values()]


def fail_attempt(
    request: Request,
    code: Code,
    failed: tuple[WorkerRef, ...],
    policy: Policy,
    now: float,
) -> list[Action]:
    """The attempt broke. Another one after the emitted tokens, or the end of the request. A worker
    that leaves hands its streams over: no failure, so neither the attempts nor the budget of
    retries bound it, and it waits for room as long as a new request may."""
    ran, moved = request.ran, code is Code.DRAINING
    failed = tuple(dict.fromkeys((*request.died, *failed)))
    emitted = request.emitted
    actions = end_attempt(request, code.value, code.value, failed, now)
    exclude(request, failed)
    if code in _HOPELESS:
        return [*actions, _fail(request, code, "the request cannot be served")]
    if emitted > policy.progress_tokens:
        request.failures = 0
    request.failures += ran and not moved
    if request.failures >= policy.attempts:
        message = f"{request.failures} attempts failed, the last one with {code.value}"
        return [*actions, _fail(request, Code.ATTEMPTS_EXHAUSTED, message)]
    if ran:
        patience_s = policy.resume_patience_s
        request.patience_until_s = now + max(patience_s, moved * policy.queue_patience_s)
    else:
        be_patient(request, policy, now)
    if now >= request.deadline_s:
        return [*actions, _fail(request, Code.DEADLINE_EXCEEDED, "the deadline has passed")]
    if request.patience_until_s is not None and now >= request.patience_until_s:
        return [*actions, _fail(request, code, "no worker could take the request")]
    actions += start_attempt(request, code.value, now)
    return actions + place(request, policy, now)


def refuse_attempt(
    request: Request, refused: Refused, worker: WorkerRef, policy: Policy, now: float
) -> list[Action]:
    """A worker said no before anything ran: wait for room there, or go elsewhere."""
    code = code_of(refused.code)
    busy = code in _BUSY
    actions = end_attempt(request, code.value, code.value, (), now)
    if code in _HOPELESS:
        return [*actions, _fail(request, code, refused.message, refused.retry_after_s)]
    if not busy:
        exclude(request, (worker,))
    be_patient(request, policy, now, busy=busy)
    if out_of_patience(request, now):
        return [*actions, _fail(request, code, refused.message, refused.retry_after_s)]
    actions += start_attempt(request, code.value, now)
    if not busy:
        return actions + place(request, policy, now)
    request.place_due_s = back_off(request, policy, now)
    return actions


def refuse_placement(
    request: Request, refused: Refused, policy: Policy, now: float
) -> list[Action]:
    """The scheduler said no. A fresh request waits in line while workers are busy or still being
    found, and hears any other answer at once; a broken one waits, since a worker may come back."""
    code = code_of(refused.code)
    passing = code is Code.LOADING or (code in _BUSY and refused.retry_after_s is not None)
    fresh = request.patience_until_s is None and request.attempt == 1
    if passing or not fresh:
        be_patient(request, policy, now, busy=code in _BUSY)
    if (fresh and not passing) or code in _HOPELESS or out_of_patience(request, now):
        actions = end_attempt(request, code.value, code.value, (), now)
        return [*actions, _fail(request, code, refused.message, refused.retry_after_s)]
    request.excluded = ()
    request.place_due_s = back_off(request, policy, now)
    request.note(now, f"not placed ({code.value}), asks again")
    return []


def scheduler_silent(
    request: Request, silence: Silence, policy: Policy, now: float
) -> list[Action]:
    """No answer from the scheduler. A fresh request with our own connection down fails at once;
    a stream that has begun waits for the connection; an absent scheduler gets a while."""
    if silence is Silence.TOO_LARGE:
        return give_up(request, Code.BODY_TOO_LARGE, TOO_LARGE, now)
    if silence is Silence.DISCONNECTED:
        if request.attempt == 1 and not request.started:
            message = "the control plane is down"
            return give_up(request, Code.CONTROL_PLANE_DOWN, message, now)
        request.place_due_s = back_off(request, policy, now)
        return []
    be_patient(request, policy, now)
    if out_of_patience(request, now):
        message = "the scheduler does not answer"
        return give_up(request, Code.CONTROL_PLANE_DOWN, message, now)
    due_s = back_off(request, policy, now)
    request.place_due_s = min(due_s, now + policy.scheduler_backoff_limit_s)
    return []


def give_up(
    request: Request, code: Code, message: str, now: float, retry_after_s: float | None = None
) -> list[Action]:
    """End the request with an error, whatever its state."""
    actions = end_attempt(request, code.value, code.value, (), now)
    return [*actions, _fail(request, code, message, retry_after_s)]


def exclude(request: Request, refs: tuple[WorkerRef, ...]) -> None:
    """These incarnations are not to be tried again by this request."""
    request.excluded += tuple(ref for ref in refs if ref not in request.excluded)


def be_patient(request: Request, policy: Policy, now: float, *, busy: bool = False) -> None:
    """Start the wait for better times, unless it already runs."""
    if request.patience_until_s is None:
        resumed = request.started or request.failures > 0
        patience_s = policy.resume_patience_s if resumed else policy.place_patience_s
        if busy and not resumed:
            patience_s = 0.0 if request.no_queue else policy.queue_patience_s
        request.patience_until_s = now + patience_s


def out_of_patience(request: Request, now: float) -> bool:
    return request.patience_until_s is not None and now >= request.patience_until_s


def back_off(request: Request, policy: Policy, now: float) -> float:
    """The instant of the next try; the pause doubles up to a limit."""
    pause_s = request.backoff_s or policy.backoff_s
    request.backoff_s = min(policy.backoff_limit_s, 2 * pause_s)
    return now + pause_s


def _fail(request: Request, code: Code, message: str, retry_after_s: float | None = None) -> Fail:
    if retry_after_s is None and code not in _HOPELESS:
        retry_after_s = DEFAULT_RETRY_S
    return Fail(request.id, code, message, retry_after_s)
