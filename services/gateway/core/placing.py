"""Placing an attempt and handing out its jobs: scheduler, then decode, then prefill.

Turns answers into the next step, or into a failure for `recovery.py`. Pure.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from services.gateway.core.actions import Action, Place, SendJob, ShowPlacement, StartAttempt
from services.gateway.core.events import Role
from services.gateway.core.request import Holder, Policy, Request
from shared.ids import BlockHash, WorkerId
from shared.kv.hashing import NAME_BYTES, CacheIdentity, block_hashes, chain_root
from shared.wire.requests import DecodeJob, Placement, PlaceRequest, PrefillJob, Sampling

_SIGNATURE: Final = b"baton-signature"


def start_attempt(request: Request, cause: str, now: float) -> list[Action]:
    """Begin the next attempt; the scheduler is asked by `place`."""
    request.begin_attempt(now)
    request.note(now, f"begins ({cause}) after {request.order.next_index} tokens")
    return [StartAttempt(request.id, request.attempt, cause)]


def place(request: Request, policy: Policy, now: float) -> list[Action]:
    """Ask the scheduler where the current attempt should run."""
    request.place_due_s = None
    tokens = request.prompt + request.order.emitted
    names = block_hashes(policy.identity, tokens)
    if not request.signature:
        request.signature = _signature(policy.identity, names, request.prompt)
    message = PlaceRequest(
        request=request.id,
        attempt=request.attempt,
        prompt_tokens=len(tokens),
        max_tokens=request.sampling.max_tokens - request.order.next_index,
        block_hashes=names,
        model_digest=policy.identity.model_digest,
        route=request.route,
        excluded=request.excluded,
        deadline_s=max(0.0, request.deadline_s - now),
        failures=request.failures,
        signature=request.signature,
        near=request.near if request.attempt == 1 else None,
        tenant=policy.identity.namespace,
        priority=request.priority,
        affinity_key=request.hints.affinity_key,
        expected_output_tokens=max(0, request.hints.expected_tokens - request.order.next_index),
        ttft_slo_s=request.hints.ttft_slo_s,
        tpot_slo_s=request.hints.tpot_slo_s,
    )
    return [Place(message)]


def accept_placement(
    request: Request, placement: Placement, policy: Policy, gateway: WorkerId, now: float
) -> list[Action]:
    """The scheduler decided: reserve at decode first; nothing runs before that answer."""
    request.placement = placement
    request.placed_s = now
    request.place_due_s = None
    request.progress_s = now
    request.note(now, f"placed {placement.route}, decode {placement.decode.worker}")
    holder = Holder(Role.DECODE, placement.decode)
    request.holders[Role.DECODE] = holder
    return [ShowPlacement(placement), send_job(request, holder, policy, gateway, now)]


def accept_job(
    request: Request, role: Role, policy: Policy, gateway: WorkerId, now: float
) -> list[Action]:
    """A worker took its job; after decode it is prefill's turn."""
    holder = request.holders[role]
    holder.accepted = True
    holder.job_due_s = None
    holder.silences = 0
    holder.next_ask_s = now + policy.stall_s
    request.ran = True
    request.progress_s = now
    request.note(now, f"{role} {holder.ref.worker} accepted")
    placement = request.placement
    if role is Role.PREFILL or placement is None or placement.prefill is None:
        return []
    if Role.PREFILL in request.holders:
        return []
    prefill = Holder(Role.PREFILL, placement.prefill)
    request.holders[Role.PREFILL] = prefill
    return [send_job(request, prefill, policy, gateway, now)]


def send_job(
    request: Request, holder: Holder, policy: Policy, gateway: WorkerId, now: float
) -> SendJob:
    """The job message of a holder; sending it twice has one effect."""
    placement = request.placement
    if placement is None:
        raise AssertionError(f"no placement to send a job for: {list(request.story)}")
    holder.job_due_s = None
    tokens = request.prompt + request.order.emitted[: request.first_index]
    left_s = max(0.0, request.deadline_s - now)
    message: DecodeJob | PrefillJob
    if holder.role is Role.DECODE:
        message = DecodeJob(
            request=request.id,
            attempt=request.attempt,
            placement_sequence=placement.sequence,
            gateway=gateway,
            tokens=tokens,
            first_index=request.first_index,
            sampling=_sampling_of_attempt(request),
            namespace=policy.identity.namespace,
            prefill=placement.prefill,
            deadline_s=left_s,
            epoch=holder.ref.epoch,
            priority=request.priority,
            kvpool=placement.kvpool,
        )
    else:
        message = PrefillJob(
            request=request.id,
            attempt=request.attempt,
            placement_sequence=placement.sequence,
            gateway=gateway,
            tokens=tokens,
            first_index=request.first_index,
            sampling=_sampling_of_attempt(request),
            namespace=policy.identity.namespace,
            decode=placement.decode,
            kvpool=placement.kvpool,
            deadline_s=left_s,
            epoch=holder.ref.epoch,
            priority=request.priority,
            fetch_from=placement.fetch_from,
            fetch_until=placement.cached_blocks + placement.fetch_blocks,
        )
    return SendJob(holder.role, holder.ref.worker, message)


def due_jobs(request: Request, policy: Policy, gateway: WorkerId, now: float) -> list[SendJob]:
    """Jobs whose delivery is in doubt, to be sent again."""
    return [
        send_job(request, holder, policy, gateway, now)
        for holder in request.holders.values()
        if holder.job_due_s is not None and now >= holder.job_due_s
    ]


def _signature(identity: CacheIdentity, names: Sequence[BlockHash], prompt: tuple[int, ...]) -> str:
    """Digest of a whole prompt of a tenant. `names` are those of its full blocks (and perhaps of
    more): the rest of the prompt goes in as it is."""
    full = len(prompt) // identity.block_tokens
    last = bytes.fromhex(names[full - 1]) if full else chain_root(identity)
    rest = prompt[full * identity.block_tokens :]
    digest = hashlib.blake2b(last, digest_size=NAME_BYTES, person=_SIGNATURE)
    digest.update(struct.pack(f"<{len(rest)}I", *rest))
    return digest.hexdigest()


def _sampling_of_attempt(request: Request) -> Sampling:
    if not request.first_index:
        return request.sampling
    left = request.sampling.max_tokens - request.first_index
    return replace(request.sampling, max_tokens=left)
