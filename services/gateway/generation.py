"""The two generating endpoints: parse, render, tokenise, check the length, hand to the core.

Owns the order of those steps and the request's root span. Decides nothing about workers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from opentelemetry.trace import SpanKind

from services.gateway.answering import Answering
from services.gateway.config import GatewayConfig
from services.gateway.core.events import Opened
from services.gateway.courier import Courier
from services.gateway.headers import Wishes, read_wishes
from services.gateway.json_body import parse_object
from services.gateway.ledger import Ledger
from services.gateway.openai_answers import Answer
from services.gateway.openai_request import (
    ChatRequest,
    CompletionRequest,
    Generation,
    read_chat,
    read_completion,
)
from services.gateway.routes import Exchange
from services.gateway.session import Session
from services.gateway.sse import ClientTooSlow
from services.gateway.text import Text
from shared.clock import Clock
from shared.errors import BatonError, ClientError, Code, RefusedError
from shared.telemetry.trace import Span, Tracer, trace_id
from shared.wire.requests import Sampling

LARGE_BODY_BYTES: Final = 64 * 1024
"""Bodies above are parsed in the worker pool, so that the loop stays quick."""


@dataclass(frozen=True, slots=True)
class Served:
    """The model behind this gateway."""

    name: str
    created: int
    eos_ids: tuple[int, ...]
    text: Text


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request that may be sent: validated, tokenised, and known to fit."""

    generation: Generation
    prompt: tuple[int, ...]
    max_tokens: int
    chat: bool


class Endpoints:
    """POST /v1/chat/completions and /v1/completions."""

    def __init__(
        self,
        served: Served,
        courier: Courier,
        config: GatewayConfig,
        clock: Clock,
        tracer: Tracer,
        ledger: Ledger,
    ) -> None:
        self._served = served
        self._courier = courier
        self._config = config
        self._clock = clock
        self._tracer = tracer
        self._ledger = ledger
        self.draining = False

    async def chat(self, exchange: Exchange) -> web.StreamResponse:
        return await self._traced(exchange, chat=True)

    async def completions(self, exchange: Exchange) -> web.StreamResponse:
        return await self._traced(exchange, chat=False)

    async def _traced(self, exchange: Exchange, *, chat: bool) -> web.StreamResponse:
        """Everything that happens to the request happens under one span, closed on every path."""
        fields = exchange.request.headers
        wishes = read_wishes(fields, self._config.deadline_s, self._config.route)
        operation = "chat" if chat else "text_completion"
        root = self._tracer.start(
            f"{operation} {self._served.name}",
            wishes.traceparent,
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "baton",
                "gen_ai.request.model": self._served.name,
                "baton.request.id": exchange.id,
            },
            kind=SpanKind.SERVER,
            start_s=exchange.started_s,
        )
        exchange.headers["x-baton-trace-id"] = trace_id(root.traceparent)
        error: str | None = None
        try:
            if self.draining:
                raise RefusedError("the gateway is shutting down", Code.DRAINING, 5.0)
            prepared = await self._prepare(exchange, wishes, root, chat)
            return await self._generate(exchange, wishes, root, prepared)
        except BatonError as failure:
            error = failure.code.value
            raise
        except asyncio.CancelledError:
            error = Code.CLIENT_GONE.value
            raise
        finally:
            root.end(error)

    # -- before anything is sent ---------------------------------------------------------

    async def _prepare(
        self, exchange: Exchange, wishes: Wishes, root: Span, chat: bool
    ) -> _Prepared:
        with self._tracer.start("gateway.parse", root.traceparent):
            request = await self._parse(exchange.body, wishes.strict, chat)
        if request.generation.model != self._served.name:
            message = "there is no such model here; see /v1/models"
            raise ClientError(message, Code.MODEL_NOT_FOUND, "model")
        with self._tracer.start("gateway.render", root.traceparent) as span:
            prompt = await self._tokenise(request)
            span.set("baton.render.tokens", len(prompt))
        generation = request.generation
        max_tokens = self._room(generation, len(prompt), request)
        _describe(root, generation, len(prompt), max_tokens)
        return _Prepared(generation, prompt, max_tokens, chat)

    async def _parse(
        self, body: bytes, strict: bool, chat: bool
    ) -> ChatRequest | CompletionRequest:
        def read() -> ChatRequest | CompletionRequest:
            parsed = parse_object(body)
            if chat:
                return read_chat(parsed, strict)
            return read_completion(parsed, self._served.text.vocabulary_tokens, strict)

        if len(body) <= LARGE_BODY_BYTES:
            return read()
        return await self._served.text.run(read, bulk=True)

    async def _tokenise(self, request: ChatRequest | CompletionRequest) -> tuple[int, ...]:
        text = self._served.text
        if isinstance(request, ChatRequest):
            return await text.chat(request.messages)
        return (
            request.prompt
            if isinstance(request.prompt, tuple)
            else await text.plain(request.prompt)
        )

    def _room(
        self, generation: Generation, prompt_tokens: int, request: ChatRequest | CompletionRequest
    ) -> int:
        """How many tokens may be generated. Raises ClientError naming all numbers, and the field
        that asks for too much: with a prompt that leaves room, the limit."""
        context = self._served.text.context_tokens
        wanted = generation.max_tokens
        if prompt_tokens + (wanted or 1) <= context:
            return wanted or context - prompt_tokens
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        if prompt_tokens < context:
            param = generation.max_tokens_field or param
        message = (
            f"the context is {context} tokens; the prompt has {prompt_tokens} "
            f"and {wanted or 1} were asked for"
        )
        raise ClientError(message, Code.CONTEXT_LENGTH_EXCEEDED, param)

    # -- the answer ----------------------------------------------------------------------

    async def _generate(
        self, exchange: Exchange, wishes: Wishes, root: Span, prepared: _Prepared
    ) -> web.StreamResponse:
        session = self._open(exchange, wishes, root, prepared)
        generation = prepared.generation
        answering = Answering(
            exchange,
            session,
            self._answer(exchange, prepared),
            len(prepared.prompt),
            generation.ignored,
            self._clock,
        )
        cause = Code.CLIENT_GONE.value
        try:
            if not generation.stream:
                return await answering.whole()
            with self._ledger.streaming():
                return await answering.events()
        except ClientTooSlow:
            cause = Code.CLIENT_TOO_SLOW.value
            if answering.stream is None:
                raise
            answering.stream.drop()
            return answering.stream.response
        finally:
            self._ledger.close(exchange, session, answering.stream, len(prepared.prompt), cause)
            self._courier.leave(session, cause)

    def _open(self, exchange: Exchange, wishes: Wishes, root: Span, prepared: _Prepared) -> Session:
        generation = prepared.generation
        sampling = Sampling(
            temperature=generation.temperature,
            top_p=generation.top_p,
            seed=generation.seed,
            max_tokens=prepared.max_tokens,
            stop_token_ids=() if generation.ignore_eos else self._served.eos_ids,
            ignore_eos=generation.ignore_eos,
        )
        detokeniser = self._served.text.detokeniser()
        session = Session(exchange.id, detokeniser, generation.stop, self._clock, root)
        deadline_s = exchange.started_s + wishes.deadline_s
        opened = Opened(
            request=exchange.id,
            prompt=prepared.prompt,
            sampling=sampling,
            route=wishes.route,
            deadline_s=deadline_s,
            no_queue=wishes.no_queue,
        )
        with self._tracer.start("gateway.admit", root.traceparent):
            self._courier.open(session, opened)
        return session

    def _answer(self, exchange: Exchange, prepared: _Prepared) -> Answer:
        stem = "chatcmpl" if prepared.chat else "cmpl"
        now_ns = self._clock.unix_ns(self._clock.now())
        return Answer(
            id=f"{stem}-{exchange.id}",
            model=self._served.name,
            created=now_ns // 1_000_000_000,
            chat=prepared.chat,
            include_usage=prepared.generation.include_usage,
            prompt_ids=prepared.prompt if prepared.generation.return_token_ids else None,
        )


def _describe(root: Span, generation: Generation, prompt_tokens: int, max_tokens: int) -> None:
    root.set("gen_ai.request.max_tokens", max_tokens)
    root.set("gen_ai.request.temperature", generation.temperature)
    root.set("gen_ai.request.top_p", generation.top_p)
    root.set("gen_ai.request.seed", generation.seed)
    root.set("gen_ai.request.stream", generation.stream)
    root.set("gen_ai.usage.input_tokens", prompt_tokens)
