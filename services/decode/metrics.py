"""The worker's figures (interfaces: groups 'workers', 'pages', 'transfer')."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from services.decode.core.actions import RunStep, Traced
from services.decode.core.machine import DecodeMachine
from services.decode.core.report import load
from services.decode.core.sequences import Stage
from shared.runtime.journal import Evictions
from shared.telemetry.metrics import Metrics, exemplar
from shared.wire.workers import CostModel

ROLE: Final = "decode"
_TOKEN_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_STATES: Final = ("free", "referenced", "cached", "leased", "quarantined")
_WAITS: Final = {
    Stage.RESERVED: "prefill",
    Stage.PULLING: "transfer",
    Stage.PARKED: "pages",
    Stage.FETCHING: "pool",
}


class DecodeMetrics:
    """What happens in steps is observed as it happens; the core's state and counts are read when
    `show` is called."""

    def __init__(self, metrics: Metrics, tick_age_s: Callable[[], float]) -> None:
        self._seen: Counter[str] = Counter()
        labels = ("role",)
        self._queue_requests = metrics.gauge(
            "baton_queue_requests", "Jobs waiting for pages.", labels
        ).labels(ROLE)
        self._queue_tokens = metrics.gauge(
            "baton_queue_tokens", "Prompt tokens left to compute.", labels
        ).labels(ROLE)
        self._queue_seconds = metrics.histogram(
            "baton_queue_seconds", "From all pages to the first step.", labels
        ).labels(ROLE)
        self._running = metrics.gauge("baton_sequences_running", "Sequences in the batch.")
        self._parked = metrics.gauge(
            "baton_sequences_parked", "Sequences that hold or want pages and do not run.", ("why",)
        )
        self._step_seconds = metrics.histogram(
            "baton_step_seconds", "Engine time of one step.", labels
        ).labels(ROLE)
        kinds = metrics.histogram(
            "baton_step_tokens", "Tokens of one step.", ("kind",), _TOKEN_BUCKETS
        )
        self._decode_tokens, self._prompt_tokens = kinds.labels("decode"), kinds.labels("prompt")
        self._budget = metrics.gauge(
            "baton_step_budget_tokens", "Most tokens of one step, by who is in it.", ("step",)
        )
        self._peak = metrics.gauge(
            "baton_forecast_pages", "Pages needed at the worst moment ahead."
        )
        self._quantile = metrics.gauge(
            "baton_forecast_quantile", "Share of answers that the forecast takes to be no longer."
        )
        self._pages = metrics.gauge("baton_pages", "Pages by state.", ("state",))
        self._leases = metrics.gauge("baton_leases", "Leases held at prefill workers.")
        self._leaked = metrics.gauge("baton_leaked_pages", "Pages held while nothing runs.")
        self._exposed = metrics.histogram(
            "baton_transfer_exposed_seconds",
            "Of a read, what lay after prefill's last word: the sequence waited for it.",
            ("transport",),
        )
        self._open = metrics.gauge("baton_transfers_open", "Reads under way.")
        age = metrics.gauge("baton_engine_tick_age_seconds", "Age of the engine call under way.")
        age.set_function(tick_age_s)
        self.unsent_tokens = metrics.counter(
            "baton_tokens_unsent_total", "Token messages that gateways have to ask for."
        )
        self.evictions = Evictions(metrics)
        self._counted = _counters(metrics)

    def stepped(self, step: RunStep, seconds: float) -> None:
        """One engine step ran."""
        sizes = [len(item.tokens) for item in step.items]
        decoding = sum(1 for size in sizes if size == 1)
        self._step_seconds.observe(seconds)
        if decoding:
            self._decode_tokens.observe(decoding)
        if sum(sizes) > decoding:
            self._prompt_tokens.observe(sum(sizes) - decoding)

    def traced(self, fact: Traced, trace_id: str) -> None:
        if fact.name in ("decode.queue", "prefill.queue"):
            self._queue_seconds.observe(fact.end_s - fact.start_s, exemplar(trace_id))
        elif fact.name == "transfer.pull":
            waited_s = float(fact.attributes["baton.transfer.exposed_s"])
            transport = str(fact.attributes["baton.transfer.transport"])
            self._exposed.labels(transport).observe(waited_s, exemplar(trace_id))

    def show(self, machine: DecodeMachine, cost: CostModel) -> None:
        """Read the core. Costs no engine time."""
        report, counts = load(machine, cost), machine.desk.cache.counts()
        self._queue_requests.set(report.queued_requests)
        self._queue_tokens.set(report.queued_tokens)
        stages = Counter(sequence.stage for sequence in machine.desk.sequences.values())
        self._running.set(stages[Stage.VERIFIED] + stages[Stage.JOINED])
        for stage, why in _WAITS.items():
            self._parked.labels(why).set(stages[stage])
        for state in _STATES:
            self._pages.labels(state).set(getattr(counts, state))
        self._budget.labels("mixed").set(machine.stepping.budget.step_tokens)
        self._budget.labels("prompts").set(machine.stepping.budget.alone_tokens)
        self._peak.set(machine.forecast.peak_pages())
        self._quantile.set(machine.forecast.quantile)
        self._leases.set(stages[Stage.RESERVED] + stages[Stage.PULLING] + machine.leases.releasing)
        self._open.set(machine.pulls.reading)
        self._leaked.set(counts.referenced if machine.idle else 0)
        for name, value in machine.counts.items():
            grown = value - self._seen[name]
            if grown and name in self._counted:
                self._counted[name](grown)
            self._seen[name] = value


def _counters(metrics: Metrics) -> dict[str, Callable[[float], None]]:
    """Which metric grows with which count of the core."""
    fenced = metrics.counter("baton_fenced_total", "Refused as outdated.", ("by",))
    damaged = metrics.counter(
        "baton_checksum_failures_total", "Pages whose checksum did not match.", ("tier",)
    )
    preempted = metrics.counter("baton_preemptions_total", "Sequences put back for their pages.")
    blocks = metrics.counter("baton_recomputed_blocks_total", "Blocks that prefill owed us.")
    refetched = metrics.counter("baton_pages_refetched_total", "Pages that were read again.")
    late = metrics.counter("baton_late_events_total", "Messages about nothing of ours.")
    failures = metrics.counter("baton_step_failures_total", "Engine steps that raised.")
    commits = metrics.counter("baton_commits_total", "Handoffs that were completed.")
    jobs = metrics.counter("baton_decode_jobs_total", "Jobs that ended.", ("outcome",))
    outcomes = {
        "ended_stop": "stop",
        "ended_length": "length",
        "ended_cancelled": "cancelled",
        "ended_newer_attempt": "superseded",
        "ended_gateway_lost": "gateway_lost",
        "jobs_failed": "failed",
    }
    return {
        "fenced_epoch": fenced.labels("epoch").inc,
        "fenced_attempt": fenced.labels("attempt").inc,
        "checksum_failures": damaged.labels("device").inc,
        "pages_implausible": damaged.labels("announced").inc,
        "preemptions": preempted.inc,
        "recomputed_blocks": blocks.inc,
        "pages_refetched": refetched.inc,
        "ignored": late.inc,
        "steps_failed": failures.inc,
        "commits": commits.inc,
        **{name: jobs.labels(outcome).inc for name, outcome in outcomes.items()},
    }
