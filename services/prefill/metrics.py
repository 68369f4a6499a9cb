"""The worker's figures (interfaces: groups 'workers', 'pages', 'transfer')."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from services.prefill.core.machine import Machine
from shared.runtime.journal import Evictions
from shared.telemetry.metrics import Metrics

ROLE: Final = "prefill"
_TOKEN_BUCKETS: Final = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_STATES: Final = ("free", "referenced", "cached", "leased", "quarantined")


class WorkerMetrics:
    """What happened in steps is observed as it happens; the machine's state and counts are read
    when `show` is called."""

    def __init__(self, metrics: Metrics, tick_age_s: Callable[[], float]) -> None:
        self._seen: Counter[str] = Counter()
        self._queue_requests = metrics.gauge(
            "baton_queue_requests", "Jobs waiting for pages.", ("role",)
        ).labels(ROLE)
        self._queue_tokens = metrics.gauge(
            "baton_queue_tokens", "Prompt tokens left to compute.", ("role",)
        ).labels(ROLE)
        self.queue_seconds = metrics.histogram(
            "baton_queue_seconds", "From arrival to pages.", ("role",)
        ).labels(ROLE)
        self._running = metrics.gauge("baton_sequences_running", "Jobs that hold pages.")
        self.step_seconds = metrics.histogram(
            "baton_step_seconds", "Engine time of one step.", ("role",)
        ).labels(ROLE)
        self.step_tokens = metrics.histogram(
            "baton_step_tokens", "Tokens of one step.", ("kind",), _TOKEN_BUCKETS
        ).labels("prompt")
        self._pages = metrics.gauge("baton_pages", "Pages by state.", ("state",))
        self._leases = metrics.gauge("baton_leases", "Leases on pages.")
        self._leaked = metrics.gauge("baton_leaked_pages", "Pages held while nothing runs.")
        age = metrics.gauge("baton_engine_tick_age_seconds", "Age of the engine call under way.")
        age.set_function(tick_age_s)
        self.unsent_tokens = metrics.counter(
            "baton_tokens_unsent_total", "First tokens that the gateway has to ask for."
        )
        self.evictions = Evictions(metrics)
        self._counted = self._counters(metrics)

    def show(self, machine: Machine, now: float) -> None:
        """Read the machine. Costs no engine time."""
        load, counts = machine.load(now), machine.cache.counts()
        self._queue_requests.set(load.queued_requests)
        self._queue_tokens.set(load.queued_tokens)
        self._running.set(load.running_sequences)
        for state in _STATES:
            self._pages.labels(state).set(getattr(counts, state))
        self._leases.set(counts.leases)
        resting = machine.idle and not counts.open_reads
        self._leaked.set(counts.referenced + counts.leased if resting else 0)
        for name, value in machine.counters.items():
            grown = value - self._seen[name]
            if grown and name in self._counted:
                self._counted[name](grown)
            self._seen[name] = value

    def _counters(self, metrics: Metrics) -> dict[str, Callable[[float], None]]:
        """Which metric grows with which count of the machine."""
        fenced = metrics.counter("baton_fenced_total", "Refused as outdated.", ("by",))
        jobs = metrics.counter("baton_prefill_jobs_total", "Jobs that ended.", ("outcome",))
        damaged = metrics.counter(
            "baton_checksum_failures_total", "Pages whose checksum did not match.", ("tier",)
        )
        blocks = metrics.counter("baton_prefill_pool_blocks_total", "Blocks.", ("direction",))
        late = metrics.counter("baton_late_events_total", "Messages about nothing of ours.")
        expired = metrics.counter("baton_lease_expiries_total", "Leases that ran out.")
        tokens = metrics.counter("baton_prefill_tokens_total", "Prompt tokens computed.")
        failures = metrics.counter("baton_step_failures_total", "Engine steps that raised.")
        outcomes = ("released", "cancelled", "superseded", "expired", "refused", "lost", "failed")
        return {
            "fenced_epoch": fenced.labels("epoch").inc,
            "fenced_attempt": fenced.labels("attempt").inc,
            "fenced_generation": fenced.labels("generation").inc,
            "damaged_blocks": damaged.labels("host").inc,
            "pool_blocks": blocks.labels("fetched").inc,
            "peer_blocks": blocks.labels("from_peers").inc,
            "blocks_lent": blocks.labels("lent").inc,
            "blocks_kept": blocks.labels("offered").inc,
            "late_events": late.inc,
            "lease_expiries": expired.inc,
            "prompt_tokens": tokens.inc,
            "step_failures": failures.inc,
            **{f"jobs_{outcome}": jobs.labels(outcome).inc for outcome in outcomes},
        }
