"""What the gateway counts, under the names of the interface page."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Histogram

from shared.telemetry.metrics import TOKEN_BUCKETS_S, Metrics, exemplar


class GatewayMetrics:
    """Each attribute is one metric; labels come from closed sets."""

    def __init__(self, metrics: Metrics) -> None:
        self._make_times(metrics.histogram)
        self._make_hints(metrics.counter)
        counter, gauge = metrics.counter, metrics.gauge
        self.requests = counter(
            "baton_requests_total", "Client requests by ending.", ("route", "outcome")
        )
        self.running = gauge("baton_requests_running", "Open client requests.")
        self.streams = gauge("baton_streams_open", "Open event streams.")
        self.waiting_tokens = gauge(
            "baton_admit_waiting_tokens", "Prompt tokens of requests without a first token."
        )
        self.refusals = counter(
            "baton_refusals_total", "Requests answered with an error.", ("status", "reason")
        )
        self.finishes = counter(
            "baton_finishes_total", "Answers by how they ended: stop, length, abort.", ("finish",)
        )
        self.prompt_tokens = counter(
            "baton_prompt_tokens_total", "Prompt tokens of answered requests.", ("source",)
        )
        self.generated_tokens = counter("baton_generated_tokens_total", "Tokens sent to clients.")
        self.attempts = counter(
            "baton_attempts_total", "Attempts begun, by what made them necessary.", ("cause",)
        )
        self.cancels = counter(
            "baton_cancels_total", "Requests ended from outside.", ("phase", "cause")
        )
        self.stale_chunks = counter(
            "baton_stale_chunks_total", "Token entries that changed nothing.", ("why",)
        )
        self.blocked = counter(
            "baton_stream_blocked_seconds_total", "Time that streams waited for their client."
        )
        self.fenced = counter("baton_fenced_total", "Refused as outdated.", ("by",))
        self.ignored = counter(
            "baton_ignored_events_total", "Late, repeated or unknown messages.", ("what",)
        )
        self.spans_dropped = counter(
            "baton_spans_dropped_total", "Spans that were not delivered.", ("reason",)
        )
        self.store_bytes = gauge("baton_trace_store_bytes", "Size of the trace store.")

    def _make_times(self, histogram: Callable[..., Histogram]) -> None:
        self.ttft = histogram("baton_ttft_seconds", "Request head to first token.", ("route",))
        self.ttft_part = histogram(
            "baton_ttft_part_seconds", "Time to first token, by where it went.", ("part",)
        )
        self.admit_wait = histogram(
            "baton_admit_wait_seconds", "From the read request to its first placement."
        )
        self.ttst = histogram(
            "baton_ttst_seconds", "First token to second.", ("route",), TOKEN_BUCKETS_S
        )
        self.itl = histogram(
            "baton_itl_seconds", "Gap between tokens after the first.", ("route",), TOKEN_BUCKETS_S
        )
        self.tpot = histogram(
            "baton_tpot_seconds", "Time per token after the first.", ("route",), TOKEN_BUCKETS_S
        )
        self.prefill_phase = histogram(
            "baton_prefill_phase_seconds", "First placement to first token."
        )
        self.decode_phase = histogram("baton_decode_phase_seconds", "First token to last.")
        self.e2e = histogram("baton_e2e_seconds", "Request head to last token.", ("route",))
        self.cancel_settle = histogram(
            "baton_cancel_settle_seconds", "Cancel sent to cancel confirmed."
        )

    def _make_hints(self, counter: Callable[..., Counter]) -> None:
        self.hints = counter(
            "baton_hints_total", "Hints by what became of them.", ("hint", "dialect", "fate")
        )
        self.hint_tokens = counter(
            "baton_hint_reused_tokens_total",
            "Prompt tokens found in a cache by requests whose hint was applied.",
            ("hint",),
        )
        self.operator_refusals = counter(
            "baton_operator_refusals_total",
            "Requests of operators and of span senders that were answered with an error.",
            ("status", "reason"),
        )

    def went_on(
        self, route: str, gap_s: float, tokens: int, *, second: bool, trace_id: str
    ) -> None:
        """`tokens` came together, `gap_s` after the one before: each is charged its share."""
        if second and tokens:
            self.ttst.labels(route).observe(gap_s, exemplar(trace_id))
        gaps = self.itl.labels(route)
        for _ in range(tokens):
            gaps.observe(gap_s / tokens, exemplar(trace_id))
