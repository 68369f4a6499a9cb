"""A cluster in a few lines: who holds how much of one chain, who has how much to do."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

from services.scheduler.core.machine import SchedulerMachine, SchedulerSettings
from services.scheduler.core.placement.settings import PlacementSettings
from services.scheduler.core.placement.view import View
from services.scheduler.core.placement.weights import Weights
from shared.ids import BlockHash, Epoch, WorkerId
from shared.wire.blocks import BlocksStored
from shared.wire.requests import Placement, PlaceRequest
from shared.wire.workers import CostModel, Heartbeat
from tests.services.scheduler.builders import ask, beat, names, placed

BLOCK = 16
CHAIN = names(*range(1, 101))
"""One hundred blocks of sixteen tokens."""


def core(policy: str = "baton", *, weights: Weights | None = None, **settings: object):  # type: ignore[no-untyped-def]
    """A leading core with this policy; all workers are added by `add`."""
    placement = PlacementSettings(16, policy=policy, weights=weights or Weights())
    placement = dataclasses.replace(placement, **settings)  # type: ignore[arg-type]
    found = SchedulerSettings(Epoch(1), 3.0, 0.0, "auto", placement)
    return SchedulerMachine(found, random.Random(5))


def add(
    machine: SchedulerMachine,
    worker: str,
    *,
    holds: int = 0,
    wait_s: float = 0.0,
    cost: CostModel | None = None,
    now: float = 0.0,
    **fields: object,
) -> Heartbeat:
    """A worker that holds the first blocks of CHAIN and has some work left."""
    report = beat(worker, work_left_s=wait_s, **fields)  # type: ignore[arg-type]
    if cost is not None:
        report = dataclasses.replace(report, cost=cost)
    machine.handle(report, now)
    if holds:
        tier = "host" if worker.startswith("kvpool") else "device"
        machine.handle(BlocksStored(WorkerId(worker), Epoch(1), 1, tier, None, CHAIN[:holds]), now)
    return report


def cluster(policy: str, workers: Mapping[str, tuple[int, float]], **settings: object):  # type: ignore[no-untyped-def]
    """Prefill workers as name -> (blocks held, seconds of work left), and one decode worker."""
    machine = core(policy, **settings)
    add(machine, "decode-0", pages_total=10_000, pages_free=10_000)
    for worker, (holds, wait_s) in workers.items():
        add(machine, worker, holds=holds, wait_s=wait_s)
    return machine


def links_carry(machine: SchedulerMachine, bytes_per_s: float) -> None:
    """What a read told that somebody else made."""
    reader, owner = WorkerId("reader"), WorkerId("owner")
    machine.world.learned.links.add(reader, owner, round(bytes_per_s), 1.001, 0.0)


def whole(request: str = "r1", blocks: int = 100, **fields: object) -> PlaceRequest:
    """A request for the first blocks of CHAIN and one more token."""
    return dataclasses.replace(
        ask(request, tokens=blocks * BLOCK + 1, hashes=CHAIN[:blocks]),
        **fields,  # type: ignore[arg-type]
    )


def fresh(request: str, blocks: int, first: int = 10_000) -> PlaceRequest:
    """A request for blocks that nobody has."""
    hashes: tuple[BlockHash, ...] = names(*range(first, first + blocks))
    return ask(request, tokens=blocks * BLOCK + 1, hashes=hashes)


def site(machine: SchedulerMachine, request: PlaceRequest, now: float = 0.5) -> str:
    """Who computes the prompt."""
    return where(placed(machine, request, now))


def where(placement: Placement) -> str:
    return (placement.prefill or placement.decode).worker


def view(machine: SchedulerMachine, request: PlaceRequest, now: float = 0.5) -> View:
    found: View = machine.deciding.placer.view(request, now)
    return found
