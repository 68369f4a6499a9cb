"""What the spans of the gateway say about a request. The GenAI names stand here and nowhere else:
they are those of the conventions as of 2026 (`cache_write`, formerly `cache_creation`), whatever
OTEL_SEMCONV_STABILITY_OPT_IN asks for. Never a prompt, an answer or a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from services.gateway.body import label
from services.gateway.choices import Choices
from services.gateway.fates import Fate
from services.gateway.openai_request import Generation
from services.gateway.routes import Exchange
from services.gateway.sse import EventStream
from shared.telemetry.trace import Span, Value

TENANT = "baton.tenant"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"


def opening(
    exchange: Exchange, operation: str, model: str, tenant: str, address: str
) -> dict[str, Value]:
    """Known before the body is read."""
    fields = exchange.request.headers
    found: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": model,
        "server.address": address,
        "baton.request.id": exchange.id,
        TENANT: tenant,
    }
    client, run = label(fields.get("X-Request-Id")), label(fields.get("x-baton-run"))
    if client:
        found["baton.client_request_id"] = client
    if run:
        found["baton.run"] = run
    return found


def describe_request(
    root: Span, generation: Generation, prompt_tokens: int, max_tokens: int
) -> None:
    """What was asked for."""
    sampling = generation.sampling
    root.set("gen_ai.request.max_tokens", max_tokens)
    root.set("gen_ai.request.temperature", sampling.temperature)
    root.set("gen_ai.request.top_p", sampling.top_p)
    root.set("gen_ai.request.top_k", sampling.top_k)
    root.set("gen_ai.request.seed", sampling.seed)
    root.set("gen_ai.request.stream", generation.stream)
    root.set("gen_ai.request.choice.count", generation.choices)
    root.set("gen_ai.usage.input_tokens", prompt_tokens)


def describe_session(root: Span, tenant: str, affinity_key: str) -> None:
    """That two requests belong together, and not to what."""
    if affinity_key:
        name = f"{tenant}\n{affinity_key}".encode()
        root.set("gen_ai.conversation.id", blake2b(name, digest_size=8).hexdigest())


def describe_answer(
    root: Span, choices: Choices, route: str, cause: str, written_tokens: int
) -> None:
    """How it ended; `cause` where the client's side ended it."""
    first = choices.first
    root.set("gen_ai.usage.output_tokens", choices.completion_tokens)
    root.set("gen_ai.usage.cache_read.input_tokens", first.cached_tokens)
    root.set("gen_ai.usage.cache_write.input_tokens", written_tokens)
    root.set("baton.route", route)
    root.set("baton.attempts", sum(len(each.attempts) for each in choices.sessions))
    if choices.finished:
        reasons = [each.finish or "" for each in choices.sessions]
        root.set("gen_ai.response.finish_reasons", reasons)
    if cause:
        root.set("baton.cancel.cause", cause)
        root.set("baton.cancel.phase", first.phase)


def describe_fates(root: Span, fates: tuple[Fate, ...]) -> None:
    for fate in fates:
        root.set(f"baton.hint.{fate.hint}", fate.outcome)


def stream_facts(
    choices: Choices, stream: EventStream | None, first_token_s: float
) -> Mapping[str, Value]:
    """Of the span `gateway.stream`."""
    stopped = any(each.stopped for each in choices.sessions)
    found: dict[str, Value] = {"baton.stream.stop_match": stopped}
    if stream is not None:
        found["baton.stream.events"] = stream.events
        found["baton.stream.bytes"] = stream.sent_bytes
        found["baton.stream.blocked_s"] = stream.blocked_s
        if stream.first_sent_s is not None:
            found["baton.stream.first_write_s"] = max(0.0, stream.first_sent_s - first_token_s)
    return found
