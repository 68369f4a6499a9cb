"""A plane's figures (interfaces: group 'transfer'): one observer for every service that reads."""

from __future__ import annotations

from typing import Final

from shared.dataplane.observer import Cause
from shared.telemetry.metrics import Metrics

_LINK_CLASSES: Final = {
    "cuda_ipc": "zero_copy",
    "rdma": "zero_copy",
    "nixl": "zero_copy",
    "shm": "zero_copy",
    "memory": "zero_copy",
    "tcp": "fallback",
}


class PlaneMetrics:
    """Implements PlaneObserver."""

    def __init__(self, metrics: Metrics) -> None:
        self._seconds = metrics.histogram(
            "baton_transfer_seconds", "One read of pages.", ("transport",)
        )
        self._bytes = metrics.counter(
            "baton_transfer_bytes_total", "Bytes read from peers.", ("transport", "form")
        )
        self._served = metrics.counter(
            "baton_transfer_served_bytes_total", "Bytes sent to reading peers.", ("transport",)
        )
        self._failures = metrics.counter(
            "baton_transfer_failures_total", "Reads that did not deliver.", ("cause",)
        )
        self._refused = metrics.counter(
            "baton_transfer_refused_total", "Reads of peers that were turned away.", ("cause",)
        )
        self._links = metrics.gauge(
            "baton_links", "Open links by what they use.", ("transport", "class")
        )

    def link_opened(self, transport: str) -> None:
        self._links.labels(transport, _LINK_CLASSES.get(transport, "staged")).inc()

    def link_closed(self, transport: str) -> None:
        self._links.labels(transport, _LINK_CLASSES.get(transport, "staged")).dec()

    def pulled(self, transport: str, size_bytes: int, seconds: float) -> None:
        self._seconds.labels(transport).observe(seconds)
        self._bytes.labels(transport, "raw").inc(size_bytes)

    def served(self, transport: str, size_bytes: int, seconds: float) -> None:
        self._served.labels(transport).inc(size_bytes)

    def failed(self, cause: Cause) -> None:
        self._failures.labels(cause.value).inc()

    def turned_away(self, cause: Cause) -> None:
        self._refused.labels(cause.value).inc()
