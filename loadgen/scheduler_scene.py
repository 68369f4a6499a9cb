"""A cluster as one scheduler core hears it: workers with full caches, prompts that share prefixes.

For `bench_scheduler`: reports, ends and block events follow each decision, so that nothing in the
core can grow unnoticed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from services.scheduler.core.events import Action, Answer, Tick
from services.scheduler.core.machine import SchedulerMachine, SchedulerSettings
from services.scheduler.core.placement.settings import PlacementSettings
from shared.ids import Attempt, BlockHash, Epoch, RequestId, WorkerId
from shared.wire.blocks import BlocksStored
from shared.wire.requests import Placement, PlacementEnded, PlaceRequest
from shared.wire.workers import BlockCount, CostModel, Heartbeat, WorkerLoad

BLOCK_TOKENS: Final = 16
MODEL: Final = "model"
COST: Final = CostModel(0.018, 1e-5, 7e-11, 0.02, 4e-5)
_TRUNKS: Final = 64
_LONGEST: Final = 2_000
_RUNNING: Final = 500
_STEP_S: Final = 0.002


class Scene:
    """`workers`: half of them prefill, half decode. A twentieth of the blocks are trunks that
    several workers hold to different depths; the rest are prompts that one worker holds."""

    def __init__(self, workers: int, blocks: int, policy: str, chance: random.Random) -> None:
        settings = SchedulerSettings(
            Epoch(1), 1e9, 0.0, "auto", PlacementSettings(16, policy), index_bytes=1 << 30
        )
        self.machine = SchedulerMachine(settings, chance)
        self._chance = chance
        self._now = 0.0
        self._beats = 0
        prefills = max(1, workers // 2)
        self._names = [f"prefill-{number:04}" for number in range(prefills)]
        self._names += [f"decode-{number:04}" for number in range(workers - prefills)]
        self._pages = 2 * blocks // prefills + 8 * _LONGEST
        self._numbers = dict.fromkeys(self._names, 0)
        self._running: deque[PlaceRequest] = deque()
        for name in self._names:
            self._beat(name)
        self._trunks = [self._chain(_LONGEST) for _ in range(_TRUNKS)]
        before = resident_bytes()
        self._fill(blocks, self._names[:prefills])
        self.bytes_per_block = (resident_bytes() - before) / self.machine.index.blocks

    def ask(self, blocks: int) -> PlaceRequest:
        """A prompt: most of a trunk, then blocks of its own."""
        trunk = self._chance.choice(self._trunks)
        shared = self._chance.randrange(blocks // 2, blocks)
        return place_request(self._chance, blocks, trunk[:shared])

    def step(self) -> float:
        """Time passes."""
        self._now += _STEP_S
        return self._now

    def follow(self, ask: PlaceRequest, actions: Sequence[Action], number: int) -> None:
        """What a cluster would do: one worker reports, an old request ends, blocks are stored."""
        (answer,) = actions
        if isinstance(answer, Answer) and isinstance(answer.reply, Placement):
            self._running.append(ask)
            if number % 10 == 0 and answer.reply.prefill is not None:
                self._store(answer.reply.prefill.worker, ask.block_hashes[-8:])
        if len(self._running) > _RUNNING:
            ended = self._running.popleft()
            done = PlacementEnded(ended.request, ended.attempt, "finished", emitted=100)
            self.machine.handle(done, self._now)
        self._beat(self._names[number % len(self._names)])
        if number % 100 == 0:
            self.machine.handle(Tick(), self._now)

    # -- inside ------------------------------------------------------------------------------

    def _chain(self, length: int) -> tuple[BlockHash, ...]:
        return chain(self._chance, length)

    def _fill(self, blocks: int, holders: list[str]) -> None:
        """Trunks first, each at several holders; then whole prompts until there are enough."""
        for trunk in self._trunks:
            for name in self._chance.sample(holders, min(8, len(holders))):
                self._store(name, trunk[: self._chance.randrange(1, len(trunk))])
        place = 0
        while self.machine.index.blocks < blocks:
            length = min(_LONGEST, blocks - self.machine.index.blocks)
            self._store(holders[place % len(holders)], self._chain(length))
            place += 1

    def _store(self, name: str, blocks: tuple[BlockHash, ...]) -> None:
        self._numbers[name] += 1
        worker = WorkerId(name)
        event = BlocksStored(worker, Epoch(1), self._numbers[name], "device", None, blocks)
        self.machine.handle(event, self._now)

    def _beat(self, name: str) -> None:
        self._beats += 1
        placed = self.machine.deciding.sequence
        beat = report(WorkerId(name), self._beats, pages=self._pages, placed=placed)
        running = self._chance.randrange(32) if beat.role == "decode" else 0
        work_s = self._chance.random() * 0.2
        load = replace(beat.load, running_sequences=running, work_left_s=work_s)
        self.machine.handle(replace(beat, load=load), self._now)


def chain(chance: random.Random, length: int) -> tuple[BlockHash, ...]:
    """Names that nobody else has."""
    return tuple(BlockHash(f"{chance.getrandbits(128):032x}") for _ in range(length))


def place_request(
    chance: random.Random, blocks: int, shared: tuple[BlockHash, ...] = ()
) -> PlaceRequest:
    """A prompt of so many blocks, of which the first are `shared`."""
    return PlaceRequest(
        request=RequestId(f"{chance.getrandbits(128):032x}"[:26]),
        attempt=Attempt(1),
        prompt_tokens=blocks * BLOCK_TOKENS + 5,
        max_tokens=256,
        block_hashes=shared + chain(chance, blocks - len(shared)),
        model_digest=MODEL,
        route="auto",
        excluded=(),
        deadline_s=600.0,
        tenant=f"tenant {chance.randrange(4)}",
    )


def report(worker: WorkerId, number: int, *, pages: int, placed: int) -> Heartbeat:
    """The `number`-th heartbeat of an idle worker that has seen all placements up to `placed`.
    Its role is its name up to the dash."""
    return Heartbeat(
        worker=worker,
        role=worker.split("-")[0],
        epoch=Epoch(1),
        sequence=number,
        state="ready",
        model_digest=MODEL,
        layout_digest="layout",
        block_tokens=BLOCK_TOKENS,
        plane_address=f"plane:{worker}",
        probe_port=0,
        load=WorkerLoad(0, 0, 0, 0.0, pages, pages, placed),
        cost=COST,
        blocks=BlockCount(0, 0, f"{0:032x}"),
        page_bytes=2 << 20,
    )


def resident_bytes() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096
