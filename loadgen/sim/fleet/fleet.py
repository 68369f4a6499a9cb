"""One performance run: a workload sent to a fleet of the five live cores; a row per request.

Rows stream out as requests end, so a run holds only what is open.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from loadgen.sim.case import Case, Order, Shape
from loadgen.sim.clock import EventHeap, HostClock
from loadgen.sim.costs import Pace
from loadgen.sim.cuts import Cuts
from loadgen.sim.fleet.callers import Caller, Row, caller, steps_of
from loadgen.sim.fleet.design import Design, DesignError
from loadgen.sim.fleet.direct_bus import DirectBus
from loadgen.sim.fleet.garbage import rare
from loadgen.sim.fleet.links import LinkFabric, Moved
from loadgen.sim.fleet.plain import unguarded
from loadgen.sim.fleet.priced_engine import PricedEngine, PricedWorks, SharedHost
from loadgen.sim.fleet.scripts import Scripts
from loadgen.sim.gateway_host import GatewayHost
from loadgen.sim.hosts import build, names
from loadgen.sim.judge import Judge
from loadgen.sim.records import EventLog
from loadgen.sim.scene import Scene
from loadgen.sim.weather import Weather
from loadgen.sim.worker import Worker
from loadgen.workloads.request import Workload

WARM_S: Final = 4.0
"""All hosts have joined and been heard before the first request is sent."""
_FOREVER_S: Final = 1e7
_MANY: Final = 1 << 40
_PULL_PAGES: Final = 64
"""In one read of a pool node, as live."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run took, beside its rows."""

    seconds: float
    """From the first send to the last ending."""
    busy_s: dict[str, float]
    """Engine time of each worker."""
    prompt_tokens: dict[str, int]
    """Computed by each worker."""
    evicted: int
    preempted: int
    moved: Moved
    calls: int


@dataclass(slots=True)
class Progress:
    """Told now and then, for a progress bar."""

    ended: int = 0
    of: int = 0
    now_s: float = 0.0
    tell: Callable[[Progress], None] = field(default=lambda _: None)


class Fleet:
    """`run` once."""

    def __init__(self, design: Design, workload: Workload, seed: int = 0) -> None:
        self._design = design
        self._workload = workload
        self._scripts = Scripts(workload)
        self._check_room()
        host = SharedHost(design.beside, design.copy_beside) if design.one_host else None
        self.scene = _scene(design, PricedWorks(design, host), seed)
        self.links = LinkFabric(self.scene, design, host)
        self.scene.bus, self.scene.plane = DirectBus(self.scene), self.links
        self.scene.crash = _never
        for name in names(self.scene.case.shape):
            self.scene.processes[name] = build(self.scene, name, 1)
        self._gateways = [p for p in self.scene.processes.values() if isinstance(p, GatewayHost)]
        self._waiting: dict[int, list[int]] = {}
        for number, row in enumerate(workload):
            if row.after is not None:
                self._waiting.setdefault(row.after, []).append(number)
        self._next = 0

    def run(self, take: Callable[[Row], None], progress: Progress | None = None) -> Spent:
        """To the last ending; `take` gets each row when its request ends."""
        with rare(), unguarded():
            return self._run(take, progress or Progress())

    def _run(self, take: Callable[[Row], None], bar: Progress) -> Spent:
        heap, total = self.scene.heap, len(self._workload)
        bar.of = total

        def ended(who: Caller) -> None:
            bar.ended += 1
            take(who.row())
            self._gateways[who.order.gateway].clients.pop(who.order.request, None)
            for number in self._waiting.pop(who.number, ()):
                heap.after(self._workload.requests[number].at_s, self._sender(number, ended))

        for process in self.scene.processes.values():
            process.start()
        heap.at(WARM_S, lambda: self._schedule(ended))
        while bar.ended < total:
            heap.next()
            if heap.calls % 50_000 == 0:
                bar.now_s = heap.now_s
                bar.tell(bar)
        return self._spent(heap.now_s - WARM_S)

    def _schedule(self, ended: Callable[[Caller], None]) -> None:
        """Put the next request that has a time of its own on the heap."""
        rows = self._workload.requests
        while self._next < len(rows) and rows[self._next].after is not None:
            self._next += 1
        if self._next >= len(rows):
            return
        number, self._next = self._next, self._next + 1
        send = self._sender(number, ended)

        def send_and_go_on() -> None:
            send()
            self._schedule(ended)

        self.scene.heap.at(WARM_S + rows[number].at_s, send_and_go_on)

    def _sender(self, number: int, ended: Callable[[Caller], None]) -> Callable[[], None]:
        row = self._workload.requests[number]

        def send() -> None:
            order = Order(
                request=f"r{number}",
                at_s=self.scene.heap.now_s,
                gateway=number % len(self._gateways),
                prompt=self._scripts.prompt(number),
                max_tokens=steps_of(row.output_tokens, self._design.stride),
                route=self._design.route,
                deadline_s=_FOREVER_S,
                priority=row.priority,
            )
            gateway = self._gateways[order.gateway]
            who = caller(order, number, row, ended)
            who.stride, who.limit_s = self._design.stride, self._design.gap_limit_s
            heap = self.scene.heap
            if self._design.front_s:
                heap.after(self._design.front_s, lambda: gateway.open(who))
            else:
                gateway.open(who)

        return send

    def _check_room(self) -> None:
        if self._design.stride > 1 and any(row.after is not None for row in self._workload):
            raise DesignError("stride above 1 needs a workload without follow-ups")
        longest = max(row.prompt_tokens + row.output_tokens for row in self._workload)
        if longest > self._design.decode_tokens:
            raise DesignError(
                f"the longest request has {longest} tokens; a decode worker has room for "
                f"{self._design.decode_tokens}"
            )

    def _spent(self, seconds: float) -> Spent:
        workers = [p for p in self.scene.processes.values() if isinstance(p, Worker)]
        engines = {w.name: w.engine for w in workers if isinstance(w.engine, PricedEngine)}
        counts: Counter[str] = Counter()
        for worker in workers:
            counts.update(worker.tally())
        return Spent(
            seconds=seconds,
            busy_s={name: engine.busy_s for name, engine in engines.items()},
            prompt_tokens={name: engine.prompt_tokens for name, engine in engines.items()},
            evicted=counts["eviction"],
            preempted=counts["preemption"],
            moved=self.links.moved,
            calls=self.scene.heap.calls,
        )


def _scene(design: Design, works: PricedWorks, seed: int) -> Scene:
    size = design.block_tokens
    shape = Shape(
        gateways=design.gateways,
        prefills=design.prefills * design.prefill.stages,
        decodes=design.decodes * design.decode.stages,
        kvpools=design.kvpools,
        prefill_pages=design.prefill_tokens // size,
        decode_pages=design.decode_tokens // size,
        kvpool_pages=max(1, design.kvpool_tokens // size),
        kvpool_pull_pages=_PULL_PAGES,
        chunk_tokens=design.chunk_tokens,
        step_tokens=design.budget_tokens,
        alone_tokens=max(design.budget_tokens, design.chunk_tokens),
        max_sequences=design.max_sequences,
        recompute_tokens=_MANY,
        lease_s=600.0,
        queue_limit=_MANY,
        reserve_wait_s=_FOREVER_S,
        gateway_requests=_MANY,
        gateway_tokens=_MANY,
        policy=design.policy,
        split=design.split,
        admission=design.admission,
        ttft_slo_s=design.ttft_slo_s,
        tpot_slo_s=design.tpot_slo_s,
    )
    heap = EventHeap()
    return Scene(
        case=Case(seed=seed, shape=shape),
        heap=heap,
        log=EventLog(),
        judge=Judge(),
        weather=Weather(seed, (), heap),
        chance=random.Random(f"fleet world {seed}"),
        clocks={name: HostClock(0.0) for name in names(shape)},
        cuts=Cuts(()),
        works=works,
        pace=Pace(
            heartbeat_s=design.heartbeat_s,
            lost_after_s=1e9,
            place_patience_s=_FOREVER_S,
            queue_patience_s=design.patience_s,
            resume_patience_s=_FOREVER_S,
        ),
        watched=False,
    )


def _never(name: str, back_s: float) -> None:
    raise AssertionError("nothing crashes in a performance run")
