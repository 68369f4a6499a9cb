"""A simulated scheduler's candidacy: the exchanges that the real `Leadership` core asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

from loadgen.sim.bus import Silence
from loadgen.sim.process import Process
from services.scheduler.core.leadership import (
    Claim,
    Leadership,
    LeaseAction,
    LeaseEvent,
    LeaseSettings,
    Observed,
    ReadKey,
    StepBack,
    StoreSilent,
    TakeLead,
    Watched,
    WriteKey,
    Wrote,
)
from shared.ids import WorkerId

_KEY: Final = "leader"
_LEASE_S: Final = 1.0
_WATCH_S: Final = 0.1
_EXCHANGE_S: Final = 0.5


class Lead:
    """`turned` hears of each change of who we are."""

    def __init__(self, process: Process, turned: Callable[[TakeLead | StepBack], None]) -> None:
        settings = LeaseSettings(
            worker=WorkerId(process.name),
            incarnation=process.address,
            lease_s=_LEASE_S,
            renew_s=_LEASE_S / 4,
            watch_s=_LEASE_S / 8,
        )
        self._process = process
        self._turned = turned
        self._leadership = Leadership(settings)

    def start(self) -> None:
        self._feed(Watched())
        self._process.later(_WATCH_S, self.start)

    def leads(self) -> bool:
        """Whether we may act as the leader now. Asked before every deed."""
        now = self._process.now()
        if self._leadership.leading and not self._leadership.leads(now):
            for action in self._leadership.lapse(now):
                self._turned(action)
        return self._leadership.leads(now)

    def _feed(self, event: LeaseEvent) -> None:
        for action in self._leadership.handle(event, self._process.now()):
            self._carry_out(action)

    def _carry_out(self, action: LeaseAction) -> None:
        bus, bucket = self._process.scene.bus, self._process.scene.bucket
        asked_s = self._process.now()
        match action:
            case TakeLead() | StepBack():
                self._turned(action)
            case ReadKey():
                bus.exchange(self._process, lambda: bucket.read(_KEY), _EXCHANGE_S, self._observed)
            case WriteKey(claim, revision):
                bus.exchange(
                    self._process,
                    lambda: bucket.write(_KEY, claim, revision),
                    _EXCHANGE_S,
                    lambda answer: self._wrote(claim, answer, asked_s),
                )
            case _:
                assert_never(action)

    def _observed(self, answer: tuple[Claim | None, int] | Silence) -> None:
        self._feed(StoreSilent() if isinstance(answer, Silence) else Observed(*answer))

    def _wrote(self, claim: Claim, answer: int | Silence | None, asked_s: float) -> None:
        if isinstance(answer, Silence):
            self._feed(StoreSilent())
        else:
            self._feed(Wrote(claim, answer, asked_s))
