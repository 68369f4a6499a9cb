"""The lease of the lead: one leader at a time, a quick successor, whatever the store and the
processes go through."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from services.scheduler.core.leadership import (
    Claim,
    Leadership,
    LeaseAction,
    LeaseEvent,
    LeaseSettings,
    Observed,
    ReadKey,
    Resigned,
    StepBack,
    StoreSilent,
    TakeLead,
    Watched,
    WriteKey,
    Wrote,
)
from shared.ids import Epoch, WorkerId

LEASE_S = 2.0


@dataclass
class Key:
    """The store's one key."""

    claim: Claim | None = None
    revision: int = 0

    def write(self, claim: Claim, revision: int) -> int | None:
        if revision != self.revision:
            return None
        self.claim, self.revision = claim, self.revision + 1
        return self.revision


@dataclass
class Candidate:
    """A process: its core, and what it was told."""

    name: str
    key: Key
    core: Leadership = field(init=False)
    turns: list[TakeLead | StepBack] = field(default_factory=list)
    open: list[ReadKey | WriteKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = Leadership(LeaseSettings(WorkerId(self.name), f"i-{self.name}", LEASE_S))

    def feed(self, event: LeaseEvent, now: float) -> None:
        for action in self.core.handle(event, now):
            self._take(action)
        assert len(self.open) <= 1

    def _take(self, action: LeaseAction) -> None:
        match action:
            case ReadKey() | WriteKey():
                self.open.append(action)
            case _:
                self.turns.append(action)

    def exchange(self, now: float, *, lost_answer: bool = False, asked_s: float = -1.0) -> None:
        """The store does what was asked; the answer may get lost."""
        action = self.open.pop()
        event: LeaseEvent
        if isinstance(action, ReadKey):
            event = Observed(self.key.claim, self.key.revision)
        else:
            revision = self.key.write(action.claim, action.revision)
            event = Wrote(action.claim, revision, now if asked_s < 0 else asked_s)
        self.feed(StoreSilent() if lost_answer else event, now)

    def run(self, now: float, until: float) -> float:
        """Undisturbed, in steps of 50 ms. The time at the end."""
        while now < until:
            self.feed(Watched(), now)
            while self.open:
                self.exchange(now)
            now += 0.05
        return now


def test_the_first_leads_at_once_and_the_second_follows() -> None:
    key = Key()
    first, second = Candidate("a", key), Candidate("b", key)
    first.run(0.0, 0.1)
    assert first.turns == [TakeLead(Epoch(1), None)]
    now = 0.1
    while now < 20.0:
        first.run(now, now + 0.05)
        now = second.run(now, now + 0.05)
    assert first.core.leads(now) and second.turns == []
    assert second.core.follows


def test_a_silent_leader_is_succeeded_within_three_seconds_and_steps_back_on_return() -> None:
    key = Key()
    first, second = Candidate("a", key), Candidate("b", key)
    now = 0.0
    while now < 5.0:
        first.run(now, now + 0.05)
        now = second.run(now, now + 0.05)
    stopped = now
    while not second.core.leads(now):
        now = second.run(now, now + 0.05)
        assert now < stopped + 3.0
        assert not (first.core.leads(now) and second.core.leads(now))
    (turn,) = second.turns
    assert isinstance(turn, TakeLead) and turn.epoch == 2
    assert turn.deposed is not None and turn.deposed.worker == "a"
    assert not first.core.leads(now)
    first.run(now, now + 0.1)
    assert first.turns[1:] == [StepBack("lapsed"), StepBack("replaced")]
    while now < 30.0:
        second.run(now, now + 0.05)
        now = first.run(now, now + 0.05)
    assert second.core.leads(now) and first.core.follows


def test_a_resigned_lease_is_taken_without_waiting() -> None:
    key = Key()
    first, second = Candidate("a", key), Candidate("b", key)
    first.run(0.0, 0.2)
    second.run(0.0, 0.2)
    first.feed(Resigned(), 0.2)
    first.exchange(0.2)
    assert first.turns[-1] == StepBack("resigned")
    second.run(0.2, 0.6)
    assert second.core.leads(0.6)
    first.run(0.6, 5.0)
    assert not first.core.leads(5.0) and key.revision == 3 + (5 if second.open else 0)


def test_a_restarted_process_takes_its_own_lease_back_at_once() -> None:
    key = Key(Claim(Epoch(7), "the one before", WorkerId("a")), 12)
    again = Candidate("a", key)
    again.run(0.0, 0.1)
    (turn,) = again.turns
    assert isinstance(turn, TakeLead) and turn.epoch == 8


def test_a_leader_that_cannot_renew_stops_before_anybody_may_follow() -> None:
    key = Key()
    leader = Candidate("a", key)
    now = leader.run(0.0, 0.1)
    for _ in range(60):
        leader.feed(Watched(), now)
        if leader.open:
            leader.open.pop()
            leader.feed(StoreSilent(), now)
        now += 0.05
    assert leader.turns[-1] == StepBack("lapsed")
    assert not leader.core.leads(LEASE_S)
    now = leader.run(now, now + 1.0)
    assert leader.turns[-1] == TakeLead(Epoch(1), None), "nobody came between: the same epoch"


def test_epochs_grow_also_when_the_store_forgets() -> None:
    key = Key(Claim(Epoch(7), "x", WorkerId("b")), 12)
    candidate = Candidate("a", key)
    candidate.run(0.0, 3.0)
    assert candidate.turns == [TakeLead(Epoch(8), Claim(Epoch(7), "x", WorkerId("b")))]
    key.claim, key.revision = None, 0
    candidate.run(3.0, 6.0)
    assert candidate.turns[-1] == TakeLead(Epoch(9), None)


@pytest.mark.parametrize("seed", range(40))
def test_never_two_leaders_and_always_one_in_the_end(seed: int) -> None:
    """Pauses, lost answers, slow answers, a store that forgets nothing."""
    chance = random.Random(seed)
    key = Key()
    candidates = [Candidate(name, key) for name in "abc"]
    paused_until = dict.fromkeys("abc", 0.0)
    asked: dict[str, float] = {}
    now, epochs = 0.0, [0]
    while now < 90.0:
        calm = now > 60.0
        for one in candidates:
            if now < paused_until[one.name]:
                continue
            if not calm and chance.random() < 0.004:
                paused_until[one.name] = now + chance.uniform(0.5, 8.0)
            one.feed(Watched(), now)
            if one.open:
                asked.setdefault(one.name, now)
                if calm or chance.random() < 0.7:
                    lost = not calm and chance.random() < 0.2
                    one.exchange(now, lost_answer=lost, asked_s=asked.pop(one.name))
        leading = [one for one in candidates if one.core.leads(now)]
        assert len(leading) <= 1, [one.name for one in leading]
        if leading and key.claim is not None:
            epochs.append(key.claim.epoch)
        now += 0.05
    assert len(leading) == 1
    assert epochs == sorted(epochs)
