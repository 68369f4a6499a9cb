"""What is written down when a request ends: metrics and the last attributes of its spans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.gateway.metrics import GatewayMetrics
from services.gateway.routes import Exchange
from services.gateway.session import Session
from services.gateway.sse import EventStream
from shared.clock import Clock
from shared.telemetry.trace import Tracer


class Ledger:
    """Counts endings. Each session is closed once, before it leaves the courier."""

    def __init__(self, metrics: GatewayMetrics, tracer: Tracer, clock: Clock) -> None:
        self._metrics = metrics
        self._tracer = tracer
        self._clock = clock

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """An event stream is open."""
        self._metrics.streams.inc()
        try:
            yield
        finally:
            self._metrics.streams.dec()

    def close(
        self,
        exchange: Exchange,
        session: Session,
        stream: EventStream | None,
        prompt_tokens: int,
        cause: str,
    ) -> None:
        """`cause` says why the client's side ended, if the session had not ended by then."""
        route = "none" if session.placement is None else session.placement.route
        outcome = "failed" if session.refusal is not None else "cancelled"
        outcome = "finished" if session.finish is not None else outcome
        metrics = self._metrics
        metrics.requests.labels(route, outcome).inc()
        metrics.generated_tokens.inc(session.completion_tokens)
        if session.first_token_s is not None:
            cached = min(session.cached_tokens, prompt_tokens)
            metrics.prompt_tokens.labels("device").inc(cached)
            metrics.prompt_tokens.labels("computed").inc(prompt_tokens - cached)
            metrics.ttft.labels(route).observe(session.first_token_s - exchange.started_s)
        if stream is not None:
            metrics.blocked.inc(max(0.0, stream.blocked_s))
            if session.refusal is not None:
                status, reason = "200", session.refusal.code.value
                metrics.refusals.labels(status, reason).inc()
        if outcome == "finished":
            self._observe_pace(exchange, session, route)
        self._describe(session, stream, route, cause if outcome == "cancelled" else "")

    def _observe_pace(self, exchange: Exchange, session: Session, route: str) -> None:
        first_s, last_s = session.first_token_s, session.last_token_s
        if first_s is None or last_s is None:
            return
        self._metrics.e2e.labels(route).observe(last_s - exchange.started_s)
        if session.completion_tokens > 1:
            pace_s = (last_s - first_s) / (session.completion_tokens - 1)
            self._metrics.tpot.labels(route).observe(pace_s)

    def _describe(
        self, session: Session, stream: EventStream | None, route: str, cause: str
    ) -> None:
        root = session.root
        root.set("gen_ai.usage.output_tokens", session.completion_tokens)
        root.set("gen_ai.usage.cache_read.input_tokens", session.cached_tokens)
        root.set("baton.route", route)
        root.set("baton.attempts", len(session.attempts))
        if session.finish is not None:
            root.set("gen_ai.response.finish_reasons", [session.finish])
        if cause:
            root.set("baton.cancel.cause", cause)
        if session.refusal is not None:
            root.end(session.refusal.code.value)
        if session.first_token_s is None:
            return
        attributes: dict[str, int | float | bool] = {"baton.stream.stop_match": session.stopped}
        if stream is not None:
            attributes["baton.stream.events"] = stream.events
            attributes["baton.stream.bytes"] = stream.sent_bytes
            attributes["baton.stream.blocked_s"] = stream.blocked_s
        now = self._clock.now()
        self._tracer.record(
            "gateway.stream", root.traceparent, session.first_token_s, now, attributes
        )
