"""One incarnation of a service: its core behind a thin simulated shell, alive, paused or dead.

Owns the order in which things reach the core. What an action means is the role's business.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from loadgen.sim.judge import Violation
from loadgen.sim.scene import Scene


class Process(ABC):
    """A power cut is `alive` turned off: nothing of it ever runs again."""

    role: ClassVar[str]

    def __init__(self, scene: Scene, name: str, incarnation: int) -> None:
        self.scene = scene
        self.name = name
        self.incarnation = incarnation
        self.alive = True
        self.paused = False
        self.connected = scene.bus.up
        self.chance = random.Random(f"{scene.case.seed} {name} {incarnation}")
        self._clock, self._heap = scene.clocks[name], scene.heap
        self._held: list[Callable[[], None]] = []
        self._wall_s = 0.0

    # -- what a role brings ----------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Begin: join the cluster, subscribe, tick."""

    @abstractmethod
    def handle(self, event: Any, now: float) -> Sequence[Any]:
        """Give one event to the core; its actions."""

    @abstractmethod
    def perform(self, action: Any) -> None:
        """Carry one action out."""

    @abstractmethod
    def check(self) -> None:
        """All invariants of the core."""

    @abstractmethod
    def story(self, request: str) -> str:
        """What the core remembers of a request."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """What is held although nothing runs any more, in words."""

    def tally(self) -> dict[str, int]:
        """What its counts say about the weather, for the table of faults."""
        return {}

    @property
    def at_work(self) -> bool:
        """Somebody's request is in here."""
        return True

    @property
    def missed(self) -> bool:
        """Its death changes something for somebody."""
        return self.at_work

    def reconnected(self) -> None:  # noqa: B027 - most roles need not know
        """The connection to the message server came back."""

    # -- time and order --------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"{self.name}#{self.incarnation}"

    def now(self) -> float:
        """This host's monotonic clock."""
        return self._clock.now(self._heap.now_s)

    def later(self, local_s: float, call: Callable[[], None]) -> None:
        """Call after a time on this host's clock."""
        self._heap.after(self._clock.duration(local_s), self.guarded(call))

    def soon(self, call: Callable[[], None]) -> None:
        self.scene.heap.after(0.0, self.guarded(call))

    def guarded(self, call: Callable[[], None]) -> Callable[[], None]:
        return partial(self.enter, call)

    def enter(self, call: Callable[[], None]) -> None:
        """Run something in this process: now, after the pause, or never."""
        if not self.alive:
            return
        if self.paused:
            self.scene.fired["pause"] += not self._held
            self._held.append(call)
        else:
            call()

    def resume(self) -> None:
        """What came in meanwhile is taken in order."""
        self.paused = False
        held, self._held = self._held, []
        for call in held:
            self.scene.heap.after(0.0, self.guarded(call))

    # -- the core --------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        """One event through the core, all invariants, then its actions. A planned crash strikes
        before, after or between."""
        if not self.alive:
            return
        if not self.scene.watched:
            for action in self.handle(event, self._clock.now(self._heap.now_s)):
                self.perform(action)
            return
        cut = self.scene.cuts.next(self.name)
        if cut is not None and cut.moment == "before":
            self.scene.crash(self.name, cut.for_s)
            return
        actions = self._guard(event)
        self.scene.log.event(self.scene.heap.now_s, self.name, event, len(actions))
        if cut is not None:
            done = {"none": 0, "half": len(actions) // 2, "all": len(actions)}[cut.moment]
            actions = actions[:done]
        for action in actions:
            if self.alive:
                self.perform(action)
        if cut is not None and self.alive:
            self.scene.crash(self.name, cut.for_s)

    def _guard(self, event: Any) -> Sequence[Any]:
        """A core that raises, or contradicts itself, has broken its promise."""
        try:
            actions = self.handle(event, self.now())
            if actions or self.at_work:
                self.check()
        except Violation:
            raise
        except Exception as error:
            kind = type(error).__name__
            what = f"{self.name} at {event!r}:\n{error}"
            raise Violation("core_raised", f"{kind} in {what}") from error
        return actions

    def tick(self, every_s: float, event: object) -> None:
        """Let time pass for the core, again and again. Unwatched runs spare those that hold
        nothing: nothing of theirs can be late."""

        def passed() -> None:
            if self.scene.watched or self.at_work:
                self.feed(event)
            self._heap.after(self._clock.duration(every_s), again)

        again = self.guarded(passed)
        self.later(every_s * self.chance.random(), passed)
