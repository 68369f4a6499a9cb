"""Answers the question for figures over the bus, for pages that cannot reach a probe port.

Costs nothing while nobody asks; knows no metric.
"""

from __future__ import annotations

from shared.bus.bus import Delivery
from shared.errors import Code, RefusedError
from shared.telemetry.metrics import Metrics
from shared.wire.views import MOST_SAMPLES, AskFigures, Figures, Sample


class FiguresDesk:
    """Of one process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def answer(self, delivery: Delivery) -> Figures:
        """Raises RefusedError for any other question."""
        ask = delivery.message
        if not isinstance(ask, AskFigures):
            raise RefusedError("only figures are told here", Code.INVALID_PARAMETER)
        samples = self._metrics.samples(ask.names[:MOST_SAMPLES], MOST_SAMPLES)
        return Figures(tuple(Sample(name, dict(labels), value) for name, labels, value in samples))
