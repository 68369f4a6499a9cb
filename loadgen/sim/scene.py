"""What all parts of one run share, and the protocol of a run as its hosts see it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadgen.sim.case import Case
from loadgen.sim.clock import EventHeap, HostClock
from loadgen.sim.costs import Pace
from loadgen.sim.judge import Judge
from loadgen.sim.records import EventLog
from loadgen.sim.store import EpochBucket
from loadgen.sim.weather import Weather
from loadgen.sim.works import Works

if TYPE_CHECKING:
    from loadgen.sim.bus import Bus
    from loadgen.sim.cuts import Cuts
    from loadgen.sim.plane import PageFabric
    from loadgen.sim.process import Process


@dataclass(slots=True, eq=False)
class Scene:
    """One run's surroundings. The world fills in bus and plane."""

    case: Case
    heap: EventHeap
    log: EventLog
    judge: Judge
    weather: Weather
    chance: random.Random
    clocks: dict[str, HostClock]
    cuts: Cuts
    works: Works
    pace: Pace = field(default_factory=Pace)
    watched: bool = True
    """Whether every event is logged and every invariant checked after it."""
    bucket: EpochBucket = field(default_factory=EpochBucket)
    paused_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """How long each host has stood still."""
    processes: dict[str, Process] = field(default_factory=dict)
    """The living process of each host."""
    bus: Bus = field(init=False)
    plane: PageFabric = field(init=False)
    crash: Callable[[str, float], None] = field(init=False)
    """Cut a host's power; it starts again after so many seconds."""

    @property
    def fired(self) -> Counter[str]:
        return self.weather.fired

    def note(self, text: str) -> None:
        self.log.note(self.heap.now_s, text)
