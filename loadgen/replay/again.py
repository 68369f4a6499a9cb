"""Feeds a log to a fresh scheduler core and compares what it does with what was done."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from services.scheduler.core import event_log
from services.scheduler.core.event_log import Entry
from services.scheduler.core.events import Answer
from services.scheduler.core.machine import SchedulerMachine, SchedulerSettings
from services.scheduler.core.placement.settings import PlacementSettings
from shared.errors import WireError
from shared.wire.requests import Placement, PlaceRequest


class LogError(ValueError):
    """A log that cannot be played: says which file, line and field."""


@dataclass(slots=True)
class Decisions:
    """Placements that were answered, summed up."""

    placed: int = 0
    refused: int = 0
    cached_blocks: int = 0
    ttft_s: float = 0.0
    """Sum of the estimates."""
    disaggregated: int = 0
    by_worker: Counter[str] = field(default_factory=Counter)
    """Prompts per worker that computes them."""

    def take(self, reply: Mapping[str, Any]) -> None:
        if "code" in reply:
            self.refused += 1
            return
        self.placed += 1
        self.cached_blocks += int(reply["cached_blocks"])
        self.ttft_s += float(reply["estimated_ttft_s"])
        self.disaggregated += reply["route"] == "disaggregated"
        self.by_worker[str((reply["prefill"] or reply["decode"])["worker"])] += 1

    @property
    def max_over_mean(self) -> float:
        counts = list(self.by_worker.values())
        return max(counts) * len(counts) / sum(counts) if counts else 0.0


@dataclass(slots=True)
class Played:
    """One log, played once."""

    events: int = 0
    asked: int = 0
    same_lines: int = 0
    """Lines that came out byte for byte as they were."""
    same_places: int = 0
    """Questions with the same workers and route as then."""
    first_difference: str = ""
    then: Decisions = field(default_factory=Decisions)
    now: Decisions = field(default_factory=Decisions)


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number, line). Raises LogError, also for a last line that was cut off."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    raise LogError(f"{path}, line {number}: cut off; the log was not closed")
                yield number, line[:-1]
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from None


def settings(path: Path) -> tuple[SchedulerSettings, int]:
    """Of the first line. Raises LogError."""
    for number, line in lines(path):
        try:
            return event_log.read_opening(line)
        except WireError as error:
            raise LogError(f"{path}, line {number}: {error.message}") from None
    raise LogError(f"{path}: empty")


def entries(path: Path) -> Iterator[tuple[int, bytes, Entry]]:
    """All lines but the first. Raises LogError."""
    for number, line in lines(path):
        if number == 1:
            continue
        try:
            yield number, line, event_log.read_entry(line)
        except WireError as error:
            raise LogError(f"{path}, line {number}: {error.message}") from None


def play(path: Path, policy: str = "", split: str = "") -> Played:
    """With its own settings, or under another policy or split: then the workers' reports stay those
    of the recorded run. Raises LogError."""
    own, seed = settings(path)
    machine = SchedulerMachine(_under(own, policy, split), random.Random(seed))
    played = Played()
    for number, line, entry in entries(path):
        actions = machine.handle(entry.event, entry.at_s)
        played.events += 1
        same = event_log.entry(entry.at_s, entry.event, actions) == line
        played.same_lines += same
        if not same and not played.first_difference:
            played.first_difference = f"line {number}: {type(entry.event).__name__}"
        if isinstance(entry.event, PlaceRequest):
            then = [fields for name, fields in entry.actions if name == Answer.__name__]
            now = [action.reply for action in actions if isinstance(action, Answer)]
            _compare(played, then[0]["reply"] if then else None, now[0] if now else None)
    return played


def _compare(played: Played, then: Mapping[str, Any] | None, now: object) -> None:
    if then is not None:
        played.asked += 1
        played.then.take(then)
    if isinstance(now, Placement):
        told: dict[str, Any] = {
            "cached_blocks": now.cached_blocks,
            "estimated_ttft_s": now.estimated_ttft_s,
            "route": now.route,
            "prefill": now.prefill and {"worker": now.prefill.worker},
            "decode": {"worker": now.decode.worker},
        }
        played.now.take(told)
        played.same_places += then is not None and _where(then) == _where(told)
    elif now is not None:
        played.now.take({"code": ""})
        played.same_places += then is not None and "code" in then


def _where(reply: Mapping[str, Any]) -> tuple[object, ...]:
    if "code" in reply:
        return ()
    prefill = reply["prefill"]
    return reply["route"], prefill and prefill["worker"], reply["decode"]["worker"]


def _under(own: SchedulerSettings, policy: str, split: str) -> SchedulerSettings:
    if not policy and not split:
        return own
    placement: PlacementSettings = own.placement
    changed = replace(
        placement, policy=policy or placement.policy, split=split or placement.split, decode=""
    )
    return replace(own, placement=changed)
