"""Short ways to say 'a worker reports this' and 'a gateway asks that'."""

from __future__ import annotations

import random

from services.scheduler.core.events import Answer
from services.scheduler.core.machine import SchedulerMachine, SchedulerSettings
from services.scheduler.core.placement.settings import PlacementSettings
from services.scheduler.core.recovery import RETRIES, RetrySettings
from shared.ids import Attempt, BlockHash, Epoch, RequestId, WorkerId
from shared.wire.requests import Placement, PlaceRequest, Refused, WorkerRef
from shared.wire.workers import BlockCount, CostModel, Heartbeat, WorkerLoad

COST = CostModel(
    step_s=0.01, token_s=0.001, pair_s=0.0, decode_step_s=0.02, decode_sequence_s=0.001
)


def beat(
    worker: str,
    *,
    epoch: int = 1,
    sequence: int = 1,
    state: str = "ready",
    model: str = "model",
    layout: str = "layout",
    work_left_s: float = 0.0,
    running: int = 0,
    step_tokens: int = 0,
    pages_total: int = 1000,
    pages_free: int = 1000,
    placement_sequence: int = 0,
    blocks: tuple[int, int, str] = (0, 0, "0" * 32),
    peers_lost: tuple[str, ...] = (),
) -> Heartbeat:
    """A heartbeat whose role is the worker id up to the dash."""
    return Heartbeat(
        worker=WorkerId(worker),
        role=worker.split("-")[0],
        epoch=Epoch(epoch),
        sequence=sequence,
        state=state,
        model_digest=model,
        layout_digest=layout,
        block_tokens=16,
        plane_address=f"plane:{worker}",
        probe_port=0,
        load=WorkerLoad(
            0, 0, running, work_left_s, pages_total, pages_free, placement_sequence, step_tokens
        ),
        cost=COST,
        blocks=BlockCount(*blocks),
        peers_lost=tuple(WorkerId(peer) for peer in peers_lost),
        page_bytes=360 * 1024,
    )


def names(*numbers: int) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(f"{number:032x}") for number in numbers)


def ask(
    request: str = "r1",
    *,
    attempt: int = 1,
    tokens: int = 100,
    hashes: tuple[BlockHash, ...] = (),
    route: str = "auto",
    model: str = "model",
    excluded: tuple[WorkerRef, ...] = (),
    failures: int = 0,
    signature: str = "",
) -> PlaceRequest:
    return PlaceRequest(
        request=RequestId(request),
        attempt=Attempt(attempt),
        prompt_tokens=tokens,
        max_tokens=32,
        block_hashes=hashes,
        model_digest=model,
        route=route,
        excluded=excluded,
        deadline_s=60.0,
        failures=failures,
        signature=signature,
    )


def machine(
    route: str = "auto",
    settled_at: float = 0.0,
    *,
    leader_epoch: int = 1,
    retries: RetrySettings = RETRIES,
) -> SchedulerMachine:
    """A core that leads, or with `leader_epoch` 0 one that follows."""
    settings = SchedulerSettings(
        leader_epoch=Epoch(leader_epoch),
        lost_after_s=3.0,
        settled_at=settled_at,
        route=route,
        placement=PlacementSettings(colocate_below_tokens=16),
        retries=retries,
    )
    return SchedulerMachine(settings, random.Random(7))


def answer(core: SchedulerMachine, request: PlaceRequest, now: float) -> Placement | Refused:
    """Ask and return the one reply."""
    (action,) = core.handle(request, now)
    core.check()
    if not isinstance(action, Answer):
        raise TypeError(f"unexpected {action}")
    return action.reply


def placed(core: SchedulerMachine, request: PlaceRequest, now: float) -> Placement:
    reply = answer(core, request, now)
    if not isinstance(reply, Placement):
        raise TypeError(f"refused: {reply}")
    return reply
