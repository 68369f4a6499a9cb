"""What the gateway counts, under the names of the interface page."""

from __future__ import annotations

from shared.telemetry.metrics import TOKEN_BUCKETS_S, Metrics


class GatewayMetrics:
    """Each attribute is one metric; labels come from closed sets."""

    def __init__(self, metrics: Metrics) -> None:
        counter, gauge, histogram = metrics.counter, metrics.gauge, metrics.histogram
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
        self.ttft = histogram("baton_ttft_seconds", "Request head to first token.", ("route",))
        self.tpot = histogram(
            "baton_tpot_seconds", "Time per token after the first.", ("route",), TOKEN_BUCKETS_S
        )
        self.e2e = histogram("baton_e2e_seconds", "Request head to last token.", ("route",))
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
        self.cancel_settle = histogram(
            "baton_cancel_settle_seconds", "Cancel sent to cancel confirmed."
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
