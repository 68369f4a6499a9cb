"""Rules of one line each: what every router starts with, and our own score cut short."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.scheduler.core.cluster import Worker
from services.scheduler.core.placement.option import Chance
from services.scheduler.core.placement.rivals.rule import Ranked
from services.scheduler.core.placement.view import View
from services.scheduler.core.sessions import stable

Value = Callable[[View, Worker], float]


class Least:
    """The least value of a function of one worker; ties by lot."""

    def __init__(self, name: str, unit: str, value: Value, chance: Chance) -> None:
        self.name = name
        self._unit = unit
        self._value = value
        self._chance = chance

    def rank(self, view: View, workers: Sequence[Worker]) -> list[Ranked]:
        ranked = [Ranked(worker, self._value(view, worker)) for worker in workers]
        for entry in ranked:
            entry.note = f"{entry.value:.4g} {self._unit}"
        return by_lot(ranked, self._chance)

    def placed(self, view: View, worker: Worker) -> None:
        """Has no memory."""


class RoundRobin:
    """One after the other, whatever they do."""

    name = "round_robin"

    def __init__(self) -> None:
        self._turn = 0

    def rank(self, view: View, workers: Sequence[Worker]) -> list[Ranked]:
        size = len(workers)
        return [
            Ranked(workers[(self._turn + place) % size], float(place), f"turn {place}")
            for place in range(size)
        ]

    def placed(self, view: View, worker: Worker) -> None:
        self._turn += 1


class PowerOfTwo:
    """Two by lot, the one with fewer requests."""

    name = "power_of_two"

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def rank(self, view: View, workers: Sequence[Worker]) -> list[Ranked]:
        first = self._chance.choice(workers)
        others = [worker for worker in workers if worker is not first]
        drawn = [first, self._chance.choice(others)] if others else [first]
        ranked = [Ranked(w, float(w.requests()), f"{w.requests()} requests") for w in drawn]
        return sorted(ranked, key=lambda entry: entry.value)

    def placed(self, view: View, worker: Worker) -> None:
        """Has no memory."""


class SessionHash:
    """The worker with the highest hash together with the session, or with the first block of the
    prompt where there is no session."""

    name = "session_hash"

    def rank(self, view: View, workers: Sequence[Worker]) -> list[Ranked]:
        ask = view.ask
        start = ask.block_hashes[0] if ask.block_hashes else ask.request
        key = ask.affinity_key or start
        hashed = [(stable(ask.tenant, key, w.report.worker), w) for w in workers]
        hashed.sort(key=lambda entry: -entry[0])
        return [Ranked(w, float(place), f"place {place}") for place, (_, w) in enumerate(hashed)]

    def placed(self, view: View, worker: Worker) -> None:
        """Has no memory."""


def random_rule(chance: Chance) -> Least:
    """Anybody."""
    return Least("random", "drawn", lambda view, worker: chance.random(), chance)


def least_requests(chance: Chance) -> Least:
    """Fewest requests."""
    return Least("least_requests", "requests", lambda view, w: float(w.requests()), chance)


def least_work(chance: Chance) -> Least:
    """Least work outstanding, in seconds."""
    return Least("least_work", "s of work", lambda view, w: view.wait_s(w), chance)


def longest_prefix(chance: Chance) -> Least:
    """Most blocks of the prompt, whatever the load."""
    return Least("longest_prefix", "blocks (negative)", lambda v, w: -float(v.cached(w)), chance)


def local_ttft(chance: Chance) -> Least:
    """Wait and own computation, nothing else."""
    value: Value = lambda view, w: view.wait_s(w) + view.prefill_s(w, view.cached(w))  # noqa: E731
    return Least("local_ttft", "s to the first token", value, chance)


def by_lot(ranked: list[Ranked], chance: Chance) -> list[Ranked]:
    """Best first; which of several equals comes first is drawn."""
    ordered = sorted(ranked, key=lambda entry: entry.value)
    equal = [entry for entry in ordered if entry.value == ordered[0].value]
    first = chance.choice(equal)
    return [first, *(entry for entry in ordered if entry is not first)]
