"""The two generating endpoints: parse, render, tokenise, check the length, hand to the core.

Owns the order of those steps and the request's root span. Decides nothing about workers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from services.gateway.answering import Answering
from services.gateway.choices import Choices
from services.gateway.config import GatewayConfig
from services.gateway.core.events import Opened
from services.gateway.courier import Courier
from services.gateway.fates import Said
from services.gateway.fields import refuse
from services.gateway.headers import Facts, Wishes, read_wishes
from services.gateway.hints import joined
from services.gateway.json_body import parse_object
from services.gateway.ledger import Ledger
from services.gateway.logprobs import LogprobForm
from services.gateway.openai_answers import Answer
from services.gateway.openai_request import (
    ChatRequest,
    CompletionRequest,
    Generation,
    read_chat,
    read_completion,
)
from services.gateway.root_span import describe_request, describe_session, opening
from services.gateway.routes import Exchange
from services.gateway.sampling import sampling_of_choice
from services.gateway.session import Session
from services.gateway.sse import ClientTooSlow
from services.gateway.stops import StopRule
from services.gateway.text import Text
from shared.clock import Clock
from shared.errors import BatonError, ClientError, Code, RefusedError
from shared.ids import RequestId
from shared.telemetry.trace import Kind, Span, Tracer, trace_id
from shared.wire.requests import WorkerRef

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
    said: Said
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
        self.joined = False
        """Whether this process has its epoch: jobs without one could not be told from old ones."""

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
            opening(
                exchange,
                operation,
                self._served.name,
                self._config.namespace,
                self._config.host,
            ),
            kind=Kind.SERVER,
            start_s=exchange.started_s,
        )
        exchange.headers["x-baton-trace-id"] = trace_id(root.traceparent)
        error: str | None = None
        try:
            if self.draining:
                raise RefusedError("the gateway is shutting down", Code.DRAINING, 5.0)
            if not self.joined:
                raise RefusedError("the gateway is starting", Code.LOADING, 1.0)
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
            span.set("baton.render.template", "checkpoint" if chat else "none")
            span.set("baton.render.tokens", len(prompt))
            span.set("baton.render.blocks", len(prompt) // self._config.block_tokens)
            span.set("baton.render.cache_hit", False)
        generation = request.generation
        max_tokens = self._room(generation, len(prompt), request)
        if generation.sampling.min_tokens > max_tokens:
            refuse("min_tokens", f"must be at most the {max_tokens} tokens that may be generated")
        hints = joined(wishes.hints, generation.hints, generation.sampling, max_tokens)
        describe_request(root, generation, len(prompt), max_tokens)
        describe_session(root, self._config.namespace, hints.affinity_key)
        said = Said(wishes.hints, generation.hints, hints)
        return _Prepared(generation, prompt, max_tokens, said, chat)

    async def _parse(
        self, body: bytes, strict: bool, chat: bool
    ) -> ChatRequest | CompletionRequest:
        vocabulary = self._served.text.vocabulary_tokens

        def read() -> ChatRequest | CompletionRequest:
            parsed = parse_object(body)
            if chat:
                return read_chat(parsed, vocabulary, strict)
            return read_completion(parsed, vocabulary, strict)

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
        choices = self._open(exchange, wishes, root, prepared)
        generation, answer = prepared.generation, self._answer(exchange, prepared)
        root.set("gen_ai.response.id", answer.id)
        root.set("gen_ai.response.model", answer.model)
        answering = Answering(
            exchange,
            choices,
            answer,
            Facts(len(prepared.prompt), generation.ignored, prepared.said),
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
            self._ledger.close(exchange, choices, answering.stream, cause, answering.facts)
            for session in choices.leave():
                self._courier.leave(session, cause)

    def _open(self, exchange: Exchange, wishes: Wishes, root: Span, prepared: _Prepared) -> Choices:
        """Open the first choice; the others follow when its prompt is computed."""
        sessions: list[Session] = []

        def open_choice(choice: int, near: WorkerRef | None) -> Session:
            """Its seed, id and place in the queue are its own; the deadline is the request's."""
            session = self._session(exchange, root, prepared, sessions)
            opened = Opened(
                request=session.id,
                prompt=prepared.prompt,
                sampling=sampling_of_choice(
                    prepared.generation.sampling,
                    choice,
                    prepared.max_tokens,
                    self._served.eos_ids,
                ),
                route=wishes.route,
                deadline_s=exchange.started_s + wishes.deadline_s,
                no_queue=wishes.no_queue,
                priority=prepared.generation.priority,
                hints=prepared.said.used,
                near=near,
                choices=prepared.generation.choices if choice == 0 else 0,
            )
            self._courier.open(session, opened)
            return session

        with self._tracer.start("gateway.admit", root.traceparent) as span:
            span.set("baton.admit.position", self._courier.open_sessions)
            first = open_choice(0, None)
            refusal = first.refusal
            span.set("baton.admit.reason", "admitted" if refusal is None else refusal.code.value)
            wait_s = None if refusal is None else refusal.retry_after_s
            span.set("baton.admit.estimate_s", wait_s or 0.0)
        return Choices(first, prepared.generation.choices, open_choice)

    def _session(
        self, exchange: Exchange, root: Span, prepared: _Prepared, sessions: list[Session]
    ) -> Session:
        """The next one of `sessions`."""
        generation = prepared.generation
        stops = StopRule(
            generation.stop, generation.sampling.min_tokens, include=generation.include_stop
        )
        sibling = sessions[-1] if sessions else None
        name = f"{exchange.id}-{len(sessions)}" if sessions else exchange.id
        session = Session(
            RequestId(name), self._served.text.detokeniser(), stops, self._clock, root, sibling
        )
        sessions.append(session)
        return session

    def _answer(self, exchange: Exchange, prepared: _Prepared) -> Answer:
        stem = "chatcmpl" if prepared.chat else "cmpl"
        now_ns = self._clock.unix_ns(self._clock.now())
        sampling, spellings = prepared.generation.sampling, self._served.text.spellings
        return Answer(
            id=f"{stem}-{exchange.id}",
            model=self._served.name,
            created=now_ns // 1_000_000_000,
            chat=prepared.chat,
            include_usage=prepared.generation.include_usage,
            prompt_ids=prepared.prompt if prepared.generation.return_token_ids else None,
            logprobs=None if sampling.logprobs is None else LogprobForm(spellings),
        )
