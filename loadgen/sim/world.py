"""One run of a case: build the cluster, let the faults strike, let them end, judge the rest.

Safety first: rules hold at every event while faults are on. Then liveness: once they stop,
everything ends and every host is back at its baseline, and a new request is served.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Final

from loadgen.sim.bus import Bus
from loadgen.sim.case import Case, Order
from loadgen.sim.clients import ALLOWED, BROKEN, FINISHED, POISON, RESET, Client
from loadgen.sim.clock import EventHeap, HostClock
from loadgen.sim.cuts import Cuts
from loadgen.sim.gateway_host import GatewayHost
from loadgen.sim.hosts import build, names
from loadgen.sim.judge import Judge, Violation
from loadgen.sim.oracle import Oracle
from loadgen.sim.plane import PageFabric
from loadgen.sim.process import Process
from loadgen.sim.records import EventLog
from loadgen.sim.scene import Scene
from loadgen.sim.strikes import Strikes
from loadgen.sim.true_engine import TrueWorks
from loadgen.sim.weather import Weather
from loadgen.sim.worker import Worker

_REST_S: Final = 9.0
"""And a lease: from the last ending, or the end of the faults, to rest on every host."""
_HEARD_S: Final = 0.7
"""Until everybody's heartbeat came through again."""
_ENDINGS_S: Final = 30.0
"""From the end of the faults to the last ending: every deadline is shorter."""
_WATCH_S: Final = 0.25
_CALLS: Final = 400_000
_PROBE_S: Final = 10.0
_NOTICED_S: Final = (0.001, 0.001, 0.6)
"""Until the message server misses a dead client."""
_GRACE_S: Final = 1.0
_FASTEST: Final = 1.1
"""More than any clock is slow."""
_FULL: Final = "error: kv_pages_exhausted"
_ORACLE: Final = Oracle()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    case: Case
    violation: Violation | None
    story: str
    digest: str
    calls: int
    fired: Counter[str]
    endings: Counter[str]


class World:
    """One cluster. `run` once."""

    def __init__(self, case: Case, *, words: bool = False) -> None:
        heap, chance = EventHeap(), random.Random(f"world {case.seed}")
        hosts = names(case.shape)
        self.scene = scene = Scene(
            case=case,
            heap=heap,
            log=EventLog(words=words),
            judge=Judge(),
            weather=Weather(case.seed, case.faults, heap),
            chance=chance,
            clocks={name: HostClock(chance.uniform(0, 1e5)) for name in hosts},
            cuts=Cuts(case.faults),
            works=TrueWorks(),
        )
        scene.bus = Bus(scene)
        scene.plane = PageFabric(scene)
        scene.crash = self.crash
        self.clients = [Client(order, _ORACLE.expected(order)) for order in case.orders]
        self._incarnations: Counter[str] = Counter()
        self._words = words
        self._calm_s = case.fault_time_s
        self._probing = False
        self._over = False
        for name in hosts:
            self.start(name)

    def run(self) -> Outcome:
        """To the end, or to the first broken rule."""
        violation: Violation | None = None
        heap, case = self.scene.heap, self.scene.case
        strikes = Strikes(self.scene)
        for client in self.clients:
            heap.at(client.order.at_s, self._opener(client))
        for fault in case.faults:
            strikes.plan(fault)
        heap.at(case.fault_time_s, self._calm)
        try:
            while not self._over:
                heap.next()
                if heap.calls > _CALLS:
                    raise Violation("livelock", f"{_CALLS} calls until {heap.now_s:.1f} s")
        except Violation as broken:
            violation = broken
        for process in self.scene.processes.values():
            self.scene.fired.update(process.tally())
        return self._outcome(violation)

    # -- hosts -----------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """A new incarnation with empty state."""
        old = self.scene.processes.get(name)
        if old is not None and old.alive:
            return
        self._incarnations[name] += 1
        process = build(self.scene, name, self._incarnations[name])
        self.scene.processes[name] = process
        process.start()

    def crash(self, name: str, back_s: float) -> None:
        """The power is cut: nothing is cleaned up. After `back_s` it starts again."""
        process, heap = self.scene.processes[name], self.scene.heap
        if not process.alive:
            return
        self.scene.note(f"{process.address} dies")
        self.scene.fired[f"crash_{process.role}"] += process.missed
        self.scene.fired.update(process.tally())
        process.alive = process.connected = False
        if isinstance(process, Worker):
            self.scene.judge.declared.add((name, process.membership.epoch))
            self.scene.plane.died(process)
        if isinstance(process, GatewayHost):
            self._reset(process)
        noticed_s = self.scene.chance.choice(_NOTICED_S)
        heap.after(noticed_s, lambda: self.scene.bus.gone(process))
        heap.after(back_s, lambda: self.start(name))

    def _reset(self, gateway: GatewayHost) -> None:
        for client in gateway.clients.values():
            if client.ending is None:
                client.end(RESET, self.scene.heap.now_s)

    def _opener(self, client: Client) -> _Opener:
        return _Opener(self, client)

    def open(self, client: Client) -> None:
        """The client connects, if its gateway is there."""
        gateway = self.scene.processes[f"gateway-{client.order.gateway}"]
        if not isinstance(gateway, GatewayHost) or not gateway.alive:
            client.end("unreachable", self.scene.heap.now_s)
            return
        leaves_s = client.order.leaves_at_s
        gateway.clients[client.order.request] = client
        gateway.enter(lambda: gateway.open(client))
        if leaves_s is not None:
            leave = gateway.guarded(lambda: gateway.leave(client))
            self.scene.heap.at(leaves_s, leave)

    # -- the second half -------------------------------------------------------------------

    def _calm(self) -> None:
        """The faults stop: the network heals, everyone is back."""
        scene = self.scene
        scene.note("the faults stop")
        scene.weather.calm = True
        scene.cuts.clear()
        if not scene.bus.up:
            scene.bus.restore()
        for name, process in list(scene.processes.items()):
            if process.paused:
                process.resume()
            self.start(name)
        self._calm_s = scene.heap.now_s
        scene.heap.after(_WATCH_S, self._watch)

    def _watch(self) -> None:
        """Rest? Then one more request at each gateway; rest again: the end."""
        scene = self.scene
        open_clients = [client for client in self.clients if client.ending is None]
        left = {
            process.address: found
            for process in scene.processes.values()
            if (found := process.leftovers()) or not process.connected
        }
        settled = scene.heap.now_s > self._calm_s + _HEARD_S
        if not open_clients and not left and settled:
            for process in scene.processes.values():
                if isinstance(process, Worker):
                    process.check_bytes()
            if self._probing:
                self._over = True
                return
            self._probe()
        else:
            self._bound(open_clients, left)
        scene.heap.after(_WATCH_S, self._watch)

    def _bound(self, open_clients: list[Client], left: dict[str, list[str]]) -> None:
        """Rest has to come in time."""
        now_s = self.scene.heap.now_s
        if open_clients:
            if now_s > self._calm_s + _ENDINGS_S:
                request = open_clients[0].order.request
                raise Violation("I7", f"{request} never ended; {left}", request)
            return
        since_s = max([self._calm_s, *(client.over_s for client in self.clients)])
        late_s = now_s - since_s - self.scene.case.shape.lease_s - _REST_S
        if late_s > 0:
            raise Violation("I8", f"left over {now_s - since_s:.0f} s after everything: {left}")

    def _probe(self) -> None:
        """Served as if nothing had been. Pages that were given up for good may be missing."""
        self._probing = True
        self._calm_s = self.scene.heap.now_s
        for number in range(self.scene.case.shape.gateways):
            order = Order(
                request=f"probe-{number}",
                at_s=0.0,
                gateway=number,
                prompt=(7, 7, 7, 7, 9, number),
                max_tokens=3,
                deadline_s=_PROBE_S,
            )
            client = Client(order, _ORACLE.expected(order))
            self.clients.append(client)
            self.open(client)

    # -- the end ---------------------------------------------------------------------------

    def _outcome(self, violation: Violation | None) -> Outcome:
        scene = self.scene
        if violation is None:
            violation = self._wrong_ending()
        return Outcome(
            case=scene.case,
            violation=violation,
            story="" if violation is None else self._story(violation),
            digest=scene.log.digest,
            calls=scene.heap.calls,
            fired=scene.fired,
            endings=Counter(client.ending or "open" for client in self.clients),
        )

    def _wrong_ending(self) -> Violation | None:
        """Endings that no fault excuses: too late, or of a kind that the design does not know."""
        for client in self.clients:
            order, ending = client.order, client.ending or "open"
            paused_s = self.scene.paused_s[f"gateway-{order.gateway}"]
            late_s = client.lasted_s - order.deadline_s * _FASTEST - paused_s
            if late_s > _GRACE_S:
                return Violation("I7", f"{order.request} ended {late_s:.1f} s late", order.request)
            if not self._allowed(order, ending):
                return Violation("ending", f"{order.request}: {ending}", order.request)
        return None

    def _allowed(self, order: Order, ending: str) -> bool:
        if not order.request.startswith("probe"):
            poisoned = ending == POISON and len(self.scene.judge.declared) > 1
            broken = ending == BROKEN and self.scene.fired["engine_error"] > 0
            return ending in ALLOWED or poisoned or broken
        return ending == FINISHED or (ending == _FULL and self.scene.fired["page_unsettled"] > 0)

    def _story(self, violation: Violation) -> str:
        request = violation.request
        lines = [str(violation)]
        for process in self.scene.processes.values():
            told = process.story(request) if request else ""
            if told:
                lines.append(f"-- {process.address}:\n{told}")
        lines.append("-- events:")
        lines += self.scene.log.tail(request, 120)
        return "\n".join(lines)


class _Opener:
    """Opens one client's request; a class, so that loops need no default arguments."""

    def __init__(self, world: World, client: Client) -> None:
        self._world, self._client = world, client

    def __call__(self) -> None:
        self._world.open(self._client)


__all__ = ["Outcome", "Process", "World"]
