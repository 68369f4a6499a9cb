"""What is written down when a request ends: metrics and the last attributes of its spans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from services.gateway.capture import Capture
from services.gateway.choices import Choices
from services.gateway.core.events import Hints
from services.gateway.fates import APPLIED
from services.gateway.headers import Facts
from services.gateway.metrics import GatewayMetrics
from services.gateway.root_span import (
    FIRST_CHUNK,
    describe_answer,
    describe_fates,
    stream_facts,
)
from services.gateway.routes import Exchange
from services.gateway.session import Session
from services.gateway.sse import EventStream
from shared.clock import Clock
from shared.telemetry.metrics import exemplar
from shared.telemetry.trace import Tracer
from shared.wire.requests import Placement


@dataclass(frozen=True, slots=True)
class Promise:
    """What answers should keep to, in seconds, unless a request says so itself; 0: nothing."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0

    def missed(self, ttft_s: float | None, tpot_s: float | None, hints: Hints) -> str:
        """Comma-separated names of what was not kept. No first token at all misses it too."""
        found = []
        ttft_most_s = hints.ttft_slo_s or self.ttft_s
        tpot_most_s = hints.tpot_slo_s or self.tpot_s
        if ttft_most_s and (ttft_s is None or ttft_s > ttft_most_s):
            found.append("ttft")
        if tpot_most_s and tpot_s is not None and tpot_s > tpot_most_s:
            found.append("tpot")
        return ",".join(found)


class Ledger:
    """Counts endings. Each session is closed once, before it leaves the courier."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        tracer: Tracer,
        clock: Clock,
        promise: Promise,
        block_tokens: int,
        capture: Capture,
    ) -> None:
        self._capture = capture
        self._promise = promise
        self._block_tokens = block_tokens
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
        choices: Choices,
        stream: EventStream | None,
        cause: str,
        facts: Facts,
    ) -> None:
        """`cause` says why the client's side ended, if the choices had not ended by then. Times
        up to the first token are the first choice's: it computed the prompt."""
        session, refusal = choices.first, choices.refusal
        route = session.route
        outcome = "failed" if refusal is not None else "cancelled"
        outcome = "finished" if choices.finished else outcome
        metrics = self._metrics
        metrics.requests.labels(route, outcome).inc()
        self._capture.ended(
            session.id, exchange.started_s, session.completion_tokens, facts.said.used, outcome
        )
        metrics.generated_tokens.inc(choices.completion_tokens)
        if session.first_token_s is not None:
            self._count_prompt(session, facts.prompt_tokens)
            metrics.ttft.labels(route).observe(
                session.first_token_s - exchange.started_s, _example(session)
            )
        self._observe_parts(exchange, session)
        if stream is not None:
            metrics.blocked.inc(max(0.0, stream.blocked_s))
            if refusal is not None:
                status, reason = "200", refusal.code.value
                metrics.refusals.labels(status, reason).inc()
        for each in choices.sessions:
            metrics.finishes.labels(each.finish or "abort").inc()
            if outcome == "finished":
                self._observe_pace(exchange, each, route)
        self._judge(exchange, choices, stream, facts.said.used)
        fates = facts.said.fates(session.placement)
        for fate in fates:
            metrics.hints.labels(fate.hint, fate.dialect, fate.kind).inc()
            if fate.outcome == APPLIED:
                metrics.hint_tokens.labels(fate.hint).inc(session.cached_tokens)
        describe_fates(session.root, fates)
        stopped_by = cause if outcome == "cancelled" else ""
        written = max(0, self._whole_blocks(facts.prompt_tokens) - session.cached_tokens)
        written = 0 if session.first_token_s is None else written
        describe_answer(session.root, choices, route, stopped_by, written)
        self._close_spans(choices, stream)

    def _whole_blocks(self, tokens: int) -> int:
        return tokens // self._block_tokens * self._block_tokens

    def _count_prompt(self, session: Session, prompt_tokens: int) -> None:
        """By where its tokens came from: what placement saw on the device, then what was copied."""
        cached, placement = min(session.cached_tokens, prompt_tokens), session.placement
        seen = 0 if placement is None else placement.cached_blocks * self._block_tokens
        copied = max(0, cached - seen) if placement is not None and _copies(placement) else 0
        source = self._metrics.prompt_tokens.labels
        source("device").inc(cached - copied)
        source("computed").inc(prompt_tokens - cached)
        if copied and placement is not None:
            source("peer" if _from_peer(placement) else "host").inc(copied)

    def _observe_parts(self, exchange: Exchange, session: Session) -> None:
        """Where the time to the first token went; the three add up to it. A second attempt is
        part of the last one. The trace of a request tells more."""
        placed_s, first_s = session.placed_s, session.first_token_s
        if placed_s is None:
            return
        self._metrics.admit_wait.observe(placed_s - session.opened_s, _example(session))
        if first_s is None:
            return
        self._metrics.prefill_phase.observe(first_s - placed_s, _example(session))
        part = self._metrics.ttft_part.labels
        part("prepare").observe(session.opened_s - exchange.started_s)
        part("place").observe(placed_s - session.opened_s)
        part("compute").observe(first_s - placed_s)

    def _observe_pace(self, exchange: Exchange, session: Session, route: str) -> None:
        first_s, last_s = session.first_token_s, session.last_token_s
        if first_s is None or last_s is None:
            return
        example = _example(session)
        self._metrics.e2e.labels(route).observe(last_s - exchange.started_s, example)
        self._metrics.decode_phase.observe(last_s - first_s, example)
        pace_s = _pace_s(session)
        if pace_s is not None:
            self._metrics.tpot.labels(route).observe(pace_s, example)

    def _judge(
        self, exchange: Exchange, choices: Choices, stream: EventStream | None, hints: Hints
    ) -> None:
        """First byte and pace as the client had them, and whether they were in time."""
        session = choices.first
        sent_s = session.first_token_s if stream is None else stream.first_sent_s
        ttft_s = None if sent_s is None else sent_s - exchange.started_s
        tpot_s = _pace_s(session)
        if ttft_s is not None:
            session.root.set(FIRST_CHUNK, ttft_s)
        if tpot_s is not None:
            session.root.set("baton.tpot_s", tpot_s)
        missed = self._promise.missed(ttft_s, tpot_s, hints)
        if missed and (choices.finished or choices.refusal is not None):
            session.root.set("baton.slo.missed", missed)

    def _close_spans(self, choices: Choices, stream: EventStream | None) -> None:
        session, refusal = choices.first, choices.refusal
        root, first_s = session.root, session.first_token_s
        if first_s is not None:
            facts, now = stream_facts(choices, stream, first_s), self._clock.now()
            self._tracer.record("gateway.stream", root.traceparent, first_s, now, facts)
        if refusal is not None:
            root.end(refusal.code.value)


def _example(session: Session) -> dict[str, str] | None:
    return exemplar(session.root.context.trace_id)


def _copies(placement: Placement) -> bool:
    return placement.fetch_from is not None or placement.kvpool is not None


def _from_peer(placement: Placement) -> bool:
    """Whether blocks were planned to come from another worker, not from the pool."""
    source, node = placement.fetch_from, placement.kvpool
    return source is not None and (node is None or node.worker != source.worker)


def _pace_s(session: Session) -> float | None:
    """Mean time of each token after the first."""
    first_s, last_s = session.first_token_s, session.last_token_s
    if first_s is None or last_s is None or session.completion_tokens < 2:
        return None
    return (last_s - first_s) / (session.completion_tokens - 1)
