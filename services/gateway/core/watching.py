"""Watching a running attempt: tokens taken in, silence noticed, holders asked, deaths judged.

Silence proves nothing while our own connection is, or just was, away. Pure.
"""

from __future__ import annotations

from services.gateway.core.actions import Action, AskResend, Cancel, Count, Deliver
from services.gateway.core.events import Role, Silence
from services.gateway.core.recovery import TOO_LARGE, code_of, fail_attempt, give_up
from services.gateway.core.request import Holder, Policy, Request
from shared.errors import Code
from shared.wire.requests import CancelRequest, JobFailed, ResendTokens, TokenEntry
from shared.wire.workers import WorkerLost

_RECONNECTING_PAUSE_S = 0.25
_PREFILLS_FAULT = frozenset({Code.TRANSFER_FAILED, Code.WORKER_LOST})
"""When decode says so."""


def take_tokens(request: Request, holder: Holder, entry: TokenEntry, now: float) -> list[Action]:
    """Put an entry of the current attempt into the stream; deliver what became next."""
    emitted = request.order.next_index
    first, began = emitted == 0, emitted > request.first_index
    if first and entry.cached_tokens is not None and request.cached_tokens is None:
        request.cached_tokens = min(max(0, entry.cached_tokens), len(request.prompt))
    taken = request.order.take(
        entry.attempt, entry.index, entry.token_ids, entry.finish, entry.logprobs
    )
    if taken.dropped is not None:
        return [Count("stale_chunk", taken.dropped)]
    if request.order.has_gap:
        request.gap_since_s = now if request.gap_since_s is None else request.gap_since_s
    else:
        request.gap_since_s = None
    if not taken.token_ids and taken.finish is None:
        return []
    _progressed(request, holder, now)
    deliver = Deliver(
        request.id,
        taken.token_ids,
        taken.finish,
        request.cached_tokens,
        taken.logprobs,
        holder.ref if holder.role is Role.DECODE else None,
    )
    alone = holder.role is Role.DECODE and not began
    return [*(_spare_prefill(request) if alone else ()), deliver]


def _spare_prefill(request: Request) -> list[Action]:
    """Decode began by itself: what prefill still has of the attempt would be in vain, and nobody
    else tells it so."""
    prefill = request.holders.get(Role.PREFILL)
    if prefill is None:
        return []
    message = CancelRequest(request.id, request.attempt, "bypassed")
    return [Cancel(Role.PREFILL, prefill.ref.worker, message)]


def _progressed(request: Request, holder: Holder, now: float) -> None:
    request.progress_s = now
    request.ttft_s = request.ttft_s or now - request.placed_s
    request.last_s = now
    request.patience_until_s = None
    request.backoff_s = 0.0
    request.ran = True
    holder.accepted = True
    holder.job_due_s = None
    holder.silences = 0
    if holder.role is Role.DECODE:
        request.handoff_until_s = None
        request.decoding = True
        request.died = ()  # it got past the place where prefill died


def asks(request: Request, policy: Policy, now: float) -> list[Action]:
    """Questions to holders that have been silent for too long, or that may fill a gap."""
    stalled = now - request.progress_s >= policy.stall_s
    gap_s = None if request.gap_since_s is None else now - request.gap_since_s
    if not stalled and (gap_s is None or gap_s < policy.gap_s):
        return []
    actions: list[Action] = []
    for holder in request.holders.values():
        if holder.role is Role.PREFILL and (request.attempt_started or request.decoding):
            continue
        ready = holder.accepted and holder.asked_s is None and not holder.unknown
        if ready and now >= holder.next_ask_s:
            holder.asked_s = now
            message = ResendTokens(request.id, request.attempt, request.order.next_index)
            actions.append(AskResend(holder.role, holder.ref.worker, message))
    return actions


def heard(request: Request, holder: Holder, policy: Policy, now: float) -> None:
    """The holder answered a question: it is alive, and has the attempt. Decode that goes on without
    prefill may have a long prompt to compute; if nobody told it, its lease runs out in time."""
    holder.asked_s = None
    holder.silences = 0
    if holder.role is Role.DECODE and request.handoff_until_s is not None:
        request.handoff_until_s = now + policy.handoff_grace_s
    pause_s = policy.stall_s if request.gap_since_s is None else policy.gap_s
    holder.next_ask_s = now + pause_s


def knows_nothing(request: Request, holder: Holder, policy: Policy, now: float) -> list[Action]:
    """The holder has lost the attempt, or it is over there: prefill says so of a job that was
    repeated because its answer was lost. Decode may still own prefill's first token."""
    holder.asked_s = None
    request.note(now, f"{holder.role} {holder.ref.worker} knows nothing of it")
    if holder.role is Role.DECODE:
        return fail_attempt(request, Code.WORKER_LOST, (), policy, now)
    if request.decoding:
        return []
    holder.unknown = True
    _wait_for_decode(request, policy, now)
    return []


def silent(
    request: Request, holder: Holder, silence: Silence, policy: Policy, now: float, grace: bool
) -> list[Action]:
    """A question got no answer; twice in a row (or nobody listens) means dead."""
    holder.asked_s = None
    if silence is Silence.DISCONNECTED:
        holder.next_ask_s = now + policy.stall_s / 2
        return []
    holder.silences += 1
    if grace:
        holder.next_ask_s = now + _RECONNECTING_PAUSE_S
        return []
    gone = silence is Silence.NO_RESPONDER
    if gone or holder.silences >= policy.silences:
        return lost(request, holder, policy, now, dead=gone)
    holder.next_ask_s = now
    return []


def job_silent(
    request: Request, holder: Holder, silence: Silence, policy: Policy, now: float, grace: bool
) -> list[Action]:
    """A job got no answer. Sending it again has one effect, so in doubt it is sent again."""
    if silence is Silence.TOO_LARGE:
        return give_up(request, Code.BODY_TOO_LARGE, TOO_LARGE, now)
    if silence is Silence.DISCONNECTED or grace:
        holder.job_due_s = now + _RECONNECTING_PAUSE_S
        return []
    holder.silences += 1
    gone = silence is Silence.NO_RESPONDER
    if gone or holder.silences >= policy.silences:
        return lost(request, holder, policy, now, dead=gone)
    holder.job_due_s = now
    return []


def gave_up(
    request: Request, holder: Holder, failure: JobFailed, policy: Policy, now: float
) -> list[Action]:
    """A worker reported failure. When decode has to do without prefill's pages and cannot,
    prefill is to blame."""
    request.note(now, f"{holder.role} {failure.worker} failed it: {failure.code}")
    if holder.role is Role.PREFILL and request.decoding:
        return []
    code = code_of(failure.code)
    blamed = holder
    if code in _PREFILLS_FAULT and holder.role is Role.DECODE:
        blamed = request.holders.get(Role.PREFILL, holder)
    return fail_attempt(request, code, (blamed.ref,), policy, now)


def declared_dead(
    request: Request, died: WorkerLost, policy: Policy, now: float, grace: bool
) -> list[Action]:
    """The scheduler says so. While we may just have missed its beats ourselves: ask first."""
    for holder in list(request.holders.values()):
        if holder.ref.worker != died.worker or holder.ref.epoch > died.epoch:
            continue
        if not grace:
            return lost(request, holder, policy, now, dead=died.cause != "ended")
        ask_soon(request, policy, now)
    return []


def ask_soon(request: Request, policy: Policy, now: float) -> None:
    """Treat the attempt as stalled: messages may have been missed."""
    request.progress_s = min(request.progress_s, now - policy.stall_s)
    for holder in request.holders.values():
        holder.next_ask_s = now
        if holder.job_due_s is not None:
            holder.job_due_s = now


def lost(
    request: Request, holder: Holder, policy: Policy, now: float, *, dead: bool = True
) -> list[Action]:
    """A holder cannot be used any more: `dead`, or left in peace, or not heard, which may be our
    own connection's fault and is nobody's death. Prefill matters only until decode goes on
    without it: decode has heard of a death too, and computes the rest or says that it is too
    much."""
    request.note(now, f"{holder.role} {holder.ref.worker} lost")
    if holder.role is Role.PREFILL and request.decoding:
        return []
    if dead and _was_computing(request, holder) and holder.ref not in request.died:
        request.died = (*request.died, holder.ref)
    decode = request.holders.get(Role.DECODE)
    goes_on = dead and decode is not None and decode.accepted
    if holder.role is Role.PREFILL and (request.attempt_started or goes_on):
        holder.unknown = True
        _wait_for_decode(request, policy, now)
        return []
    return fail_attempt(request, Code.WORKER_LOST, (holder.ref,), policy, now)


def _was_computing(request: Request, holder: Holder) -> bool:
    """Whether the holder's engine may have been at work on the attempt: prefill until the first
    token, decode from then on (or from prefill's death, or from the beginning)."""
    placement = request.placement
    if not holder.accepted or placement is None:
        return False
    alone = placement.prefill is None or bool(request.died)
    return request.attempt_started == (holder.role is Role.DECODE) or alone


def handoff_overdue(request: Request, policy: Policy, now: float) -> list[Action]:
    """Decode did not go on without prefill: another attempt."""
    if request.handoff_until_s is None or now < request.handoff_until_s:
        return []
    prefill = request.holders.get(Role.PREFILL)
    failed = () if prefill is None else (prefill.ref,)
    return fail_attempt(request, Code.WORKER_LOST, failed, policy, now)


def _wait_for_decode(request: Request, policy: Policy, now: float) -> None:
    if request.handoff_until_s is None:
        request.handoff_until_s = now + policy.handoff_grace_s
    decode = request.holders.get(Role.DECODE)
    if decode is not None:
        decode.next_ask_s = now
