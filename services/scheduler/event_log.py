"""Writes the event log of one scheduler process to a file, to be played again later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.scheduler.core import event_log
from services.scheduler.core.events import Action, Event
from services.scheduler.core.machine import SchedulerSettings
from shared.errors import StartupError


class EventLogFile:
    """One file for the life of a process; an older one of the name is replaced."""

    def __init__(self, path: Path, settings: SchedulerSettings, seed: int) -> None:
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise StartupError(f"event_log {path}: {error.strerror or error}") from error
        self._file.write(event_log.opening(settings, seed) + b"\n")

    def write(self, at_s: float, event: Event, actions: Sequence[Action]) -> None:
        self._file.write(event_log.entry(at_s, event, actions) + b"\n")

    def close(self) -> None:
        self._file.close()
