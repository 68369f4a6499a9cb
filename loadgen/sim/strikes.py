"""The faults that strike at an instant: crashes, pauses, outages, jumps of the date, rot.

Counts a fault as fired only when it had something to hit.
"""

from __future__ import annotations

from loadgen.sim.case import Fault
from loadgen.sim.kvpool_host import KvPoolHost
from loadgen.sim.process import Process
from loadgen.sim.scene import Scene
from shared.kv.blocks import State


class Strikes:
    """Puts a case's faults on the heap."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def plan(self, fault: Fault) -> None:
        """Crashes at an event, and weather, are looked after elsewhere."""
        heap = self._scene.heap
        match fault.kind:
            case "clock_drift":
                self._drift(fault)
            case "pause":
                heap.at(fault.at_s, lambda: self._pause(fault))
            case "nats_outage":
                heap.at(fault.at_s, lambda: self._outage(fault))
            case "wall_jump":
                heap.at(fault.at_s, lambda: self._jump(fault))
            case "bit_flip_rest":
                heap.at(fault.at_s, self._rot)
            case kind if kind.startswith("crash_") and not fault.event:
                heap.at(fault.at_s, lambda: self._scene.crash(fault.host, fault.for_s))
            case _:
                pass

    @property
    def _over(self) -> bool:
        return self._scene.weather.calm

    def _drift(self, fault: Fault) -> None:
        self._scene.clocks[fault.host].rate = fault.amount
        self._scene.fired["clock_drift"] += fault.amount != 1.0

    def _pause(self, fault: Fault) -> None:
        process = self._scene.processes[fault.host]
        if not process.alive or process.paused or self._over:
            return
        self._scene.note(f"{process.address} stands still for {fault.for_s:.1f} s")
        long = fault.for_s > self._scene.case.shape.lease_s
        holds = process.role in ("prefill", "decode") and process.at_work
        self._scene.fired["pause_past_lease"] += long and holds
        process.paused = True
        self._scene.paused_s[fault.host] += fault.for_s
        self._scene.heap.after(fault.for_s, lambda: self._go_on(process))

    def _go_on(self, process: Process) -> None:
        if process.alive and process.paused:
            self._scene.note(f"{process.address} goes on")
            process.resume()

    def _outage(self, fault: Fault) -> None:
        bus = self._scene.bus
        if not bus.up or self._over:
            return
        self._scene.note(f"the message server is away for {fault.for_s:.1f} s")
        self._scene.fired["nats_outage"] += 1
        bus.outage()
        self._scene.heap.after(fault.for_s, lambda: None if bus.up else bus.restore())

    def _jump(self, fault: Fault) -> None:
        """The date changes; nothing may depend on it."""
        process = self._scene.processes[fault.host]
        self._scene.clocks[fault.host].wall_s += fault.amount
        self._scene.fired["wall_jump"] += process.alive

    def _rot(self) -> None:
        """A bit of a cached page in a pool node turns."""
        for process in self._scene.processes.values():
            if not isinstance(process, KvPoolHost) or not process.alive or self._over:
                continue
            cache = process.cache
            cached = [page for page in cache.granted() if cache.look(page).state is State.CACHED]
            if cached:
                page = self._scene.chance.choice(cached)
                content = memoryview(process.memory.run(page, 1)).cast("B")
                at = self._scene.chance.randrange(len(content))
                content[at] ^= 1 << self._scene.chance.randrange(8)
                process.rotten.add(page)
                self._scene.note(f"{process.address} page {page} rots")
                self._scene.fired["bit_flip_rest"] += 1
