"""Counts of what a bus connection sent, received, refused and lost, under a closed set of labels.

Shared by all adapters, so the same names mean the same thing everywhere.
"""

from __future__ import annotations

from typing import Final

from shared.telemetry.log import Log
from shared.telemetry.metrics import Metrics
from shared.wire.subjects import GRANTS


class Traffic:
    """The metrics of one bus connection, and the log for what must be seen."""

    def __init__(self, metrics: Metrics | None = None, log: Log | None = None) -> None:
        metrics = metrics or Metrics()
        self.metrics = metrics
        self.log = log or Log("bus", "", level="error")
        self._messages = metrics.counter(
            "baton_bus_messages_total", "Control messages.", ("subject", "direction")
        )
        self._requests = metrics.histogram(
            "baton_bus_request_seconds", "Request to reply or failure.", ("subject",)
        )
        self._undecodable = metrics.counter(
            "baton_bus_undecodable_total", "Messages refused by the codec.", ("subject",)
        )
        self._failures = metrics.counter(
            "baton_bus_handler_failures_total", "Handlers that raised.", ("subject",)
        )
        self._dropped = metrics.counter(
            "baton_bus_dropped_total", "Messages or replies thrown away.", ("reason",)
        )
        self._denied = metrics.counter(
            "baton_bus_denied_total", "Subjects that this role may not use.", ("action",)
        )
        self.reconnects = metrics.counter(
            "baton_bus_reconnects_total", "Times the connection came back."
        )

    def sent(self, subject: str) -> None:
        self._messages.labels(label(subject), "out").inc()

    def received(self, subject: str) -> None:
        self._messages.labels(label(subject), "in").inc()

    def answered(self, subject: str, seconds: float) -> None:
        """A request ended, with a reply or without."""
        self._requests.labels(label(subject)).observe(seconds)

    def undecodable(self, subject: str) -> None:
        self._undecodable.labels(label(subject)).inc()

    def handler_failed(self, subject: str, error: Exception) -> None:
        """A handler raised what is not an error of ours: a bug, so it is logged with its place."""
        self._failures.labels(label(subject)).inc()
        self.log.failure("bus.handler_failed", error, subject=label(subject))

    def dropped(self, reason: str) -> None:
        """`reason`: slow_consumer, reply_unsent, stray_reply, late_reply or closed."""
        self._dropped.labels(reason).inc()

    def denied(self, action: str, subject: str) -> None:
        """The server refused a publish or subscribe of ours: credentials do not fit the role."""
        self._denied.labels(action).inc()
        self.log.event("bus.denied", level="error", action=action, subject=label(subject))


def label(subject: str) -> str:
    """A subject without worker ids: 'baton.decode.decode-3.job' -> 'decode.job'. Of a closed set:
    parts of a subject may be what somebody else wrote."""
    found = _without_ids(subject)
    return found if found in _LABELS else "other"


def _without_ids(subject: str) -> str:
    parts = subject.split(".")
    if parts[:3] == ["baton", "scheduler", "register"]:
        return "scheduler.register"
    if parts[0] != "baton" or not 3 <= len(parts) <= 4:
        return ""
    if parts[1] in ("heartbeat", "blocks", "snapshot", "figures"):
        return f"{parts[1]}.{parts[2]}"
    return f"{parts[1]}.{parts[-1]}"


_LABELS: Final = frozenset(
    _without_ids(subject)
    for grants in GRANTS.values()
    for subject in (*grants["publish"], *grants["subscribe"])
)
