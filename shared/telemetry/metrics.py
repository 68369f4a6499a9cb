"""One process's counters, gauges and histograms, and their Prometheus text.

Owns the registry and the bucket choices; knows nothing about what is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as PromSample

TIME_BUCKETS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
TOKEN_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Token latencies, as the GenAI conventions draw them."""

_OPEN: Final = "application/openmetrics-text"
_OPEN_TYPE: Final = f"{_OPEN}; version=1.0.0; charset=utf-8"
_TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_Made = TypeVar("_Made", Counter, Gauge, Histogram)


class Metrics:
    """Metrics by name. Asking twice for a name gives the same metric; another kind or other
    labels under a taken name are a programming error (ValueError). Labels come from closed sets:
    never an id, never a client's text."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._made: dict[str, tuple[Counter | Gauge | Histogram, tuple[str, ...]]] = {}

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """A number that only grows. `name` ends with `_total`."""
        if not name.endswith("_total"):
            raise ValueError(f"counter {name} must end with _total")
        return self._once(
            Counter, name, labels, lambda: Counter(name, help, labels, registry=self._registry)
        )

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        """A number that goes up and down; `.set_function` reads it at each scrape."""
        return self._once(
            Gauge, name, labels, lambda: Gauge(name, help, labels, registry=self._registry)
        )

    def histogram(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = TIME_BUCKETS_S,
    ) -> Histogram:
        """A distribution, in the unit of the name."""
        return self._once(
            Histogram,
            name,
            labels,
            lambda: Histogram(name, help, labels, buckets=buckets, registry=self._registry),
        )

    def render(self, accept: str = "", more: Iterable[Metric] = ()) -> tuple[bytes, str]:
        """All metrics and some more, and the content type: Prometheus' text format, or
        OpenMetrics with exemplars for whoever accepts that."""
        everything = _Everything(self._registry, tuple(more))
        if _OPEN in accept:
            # Our names need no escaping; escaped by default they would lose their colons.
            text: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
                everything, openmetrics.ALLOWUTF8
            )
            return text, _OPEN_TYPE
        return generate_latest(everything), _TEXT_TYPE

    def raw(self, name: str) -> list[PromSample]:
        """All samples of one metric, with buckets. Empty: it was never asked for."""
        made = self._made.get(name)
        if made is None:
            return []
        return [sample for family in made[0].collect() for sample in family.samples]

    def samples(
        self, names: Sequence[str], most: int
    ) -> list[tuple[str, Mapping[str, str], float]]:
        """Name, labels and value of every sample of these metrics, of histograms only sum and
        count; finite values, at most so many."""
        found: list[tuple[str, Mapping[str, str], float]] = [
            (sample.name, sample.labels, float(sample.value))
            for name in names
            if name in self._made
            for family in self._made[name][0].collect()
            for sample in family.samples
            if not sample.name.endswith(("_bucket", "_created")) and math.isfinite(sample.value)
        ]
        return found[:most]

    def value(self, name: str, **labels: str) -> float:
        """The present value of one sample (0 when it never moved). For tests and accounting."""
        return self._registry.get_sample_value(name, labels) or 0.0

    def _once(
        self, kind: type[_Made], name: str, labels: Sequence[str], make: Callable[[], _Made]
    ) -> _Made:
        if not name.startswith("baton_"):
            raise ValueError(f"metric {name} must start with baton_")
        if name not in self._made:
            self._made[name] = (make(), tuple(labels))
        metric, made_labels = self._made[name]
        if type(metric) is not kind or made_labels != tuple(labels):
            raise ValueError(f"metric {name} exists with another kind or other labels")
        return metric


class _Everything(Collector):
    """What a registry collects, and some more."""

    def __init__(self, registry: CollectorRegistry, more: Sequence[Metric]) -> None:
        self._registry = registry
        self._more = more

    def collect(self) -> Iterator[Metric]:
        yield from self._registry.collect()
        yield from self._more


def exemplar(trace_id: str) -> dict[str, str] | None:
    """Names the trace in which a value was seen."""
    return {"trace_id": trace_id} if trace_id else None
