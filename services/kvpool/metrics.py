"""The node's figures (interfaces: groups 'pages', 'transfer', 'kvpool')."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from services.kvpool.core.machine import PoolMachine
from shared.dataplane.metering import PlaneMetrics
from shared.ids import BlockHash
from shared.kv.radix import Removed, Stored
from shared.telemetry.metrics import Metrics
from shared.wire.blocks import BlocksFound

_TIER: Final = "host"
_STATES: Final = ("free", "referenced", "cached", "leased", "quarantined")


class PoolMetrics:
    """The machine's state and counts, read when `show` is called."""

    def __init__(self, metrics: Metrics, page_bytes: int, block_tokens: int) -> None:
        self._page_bytes = page_bytes
        self._seen: Counter[str] = Counter()
        self._pages = metrics.gauge("baton_pages", "Pages by state.", ("state",))
        self._bytes = metrics.gauge("baton_pool_bytes", "Arena by state.", ("tier", "state"))
        self._leases = metrics.gauge("baton_leases", "Leases on pages.")
        self._offers = metrics.gauge("baton_pool_offers_open", "Offers without an answer.")
        self._leaked = metrics.gauge("baton_leaked_pages", "Pages held while nothing runs.")
        self._unused = metrics.counter(
            "baton_pool_unused_evictions_total", "Blocks forgotten that nobody had come for."
        )
        self._read: set[BlockHash] = set()
        """Blocks that are here and that somebody came for."""
        self._grown = self._counters(metrics, block_tokens)

    def lent(self, found: BlocksFound) -> None:
        """Somebody came for these."""
        self._read.update(page.block for page in found.pages if page.block is not None)

    def published(self, events: Iterable[Stored | Removed]) -> None:
        """Blocks that go: were they of use?"""
        gone = [block for event in events if isinstance(event, Removed) for block in event.blocks]
        self._unused.inc(sum(block not in self._read for block in gone))
        self._read.difference_update(gone)

    def show(self, machine: PoolMachine) -> None:
        counts = machine.cache.counts()
        for state in _STATES:
            pages = getattr(counts, state)
            self._pages.labels(state).set(pages)
            self._bytes.labels(_TIER, state).set(pages * self._page_bytes)
        self._leases.set(counts.leases)
        self._offers.set(machine.offers_open)
        self._leaked.set(counts.referenced + counts.leased if machine.at_rest else 0)
        for name, grow in self._grown.items():
            grow(machine.counts.get(name, 0) - self._seen[name])
            self._seen[name] = machine.counts.get(name, 0)

    def _counters(self, metrics: Metrics, block_tokens: int) -> dict[str, Callable[[float], None]]:
        """Which metric grows with which count of the machine."""
        lookups = metrics.counter("baton_pool_lookups_total", "Lookups answered.", ("result",))
        hits = metrics.counter("baton_pool_hit_tokens_total", "Tokens found.", ("tier",))
        evicted = metrics.counter(
            "baton_pool_evictions_total", "Blocks forgotten.", ("tier", "reason")
        )
        stored = metrics.counter("baton_pool_stored_blocks_total", "Blocks taken in.", ("tier",))
        damaged = metrics.counter(
            "baton_checksum_failures_total", "Pages whose checksum did not match.", ("tier",)
        )
        return {
            "lookups_hit": lookups.labels("hit").inc,
            "lookups_missed": lookups.labels("miss").inc,
            "blocks_found": lambda blocks: hits.labels(_TIER).inc(blocks * block_tokens),
            "blocks_evicted": evicted.labels(_TIER, "capacity").inc,
            "blocks_dropped": evicted.labels(_TIER, "damaged").inc,
            "blocks_stored": stored.labels(_TIER).inc,
            "blocks_damaged": damaged.labels(_TIER).inc,
            "leases_expired": metrics.counter("baton_lease_expiries_total", "Ran out.").inc,
            "fenced_epoch": metrics.counter("baton_fenced_total", "Outdated.", ("by",))
            .labels("epoch")
            .inc,
            "late_pulls": metrics.counter("baton_late_events_total", "About nothing of ours.").inc,
        }


class PoolTransfers(PlaneMetrics):
    """Besides, how long the host tier takes to write (pull from an owner) and to read."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._written = metrics.histogram(
            "baton_pool_write_seconds", "One pull from an owner.", ("tier",)
        ).labels(_TIER)
        self._read = metrics.histogram(
            "baton_pool_read_seconds", "One read by a worker.", ("tier",)
        ).labels(_TIER)

    def pulled(self, transport: str, size_bytes: int, seconds: float) -> None:
        super().pulled(transport, size_bytes, seconds)
        self._written.observe(seconds)

    def served(self, transport: str, size_bytes: int, seconds: float) -> None:
        super().served(transport, size_bytes, seconds)
        self._read.observe(seconds)
