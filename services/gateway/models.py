"""What can be served, and how text becomes tokens here: /v1/models and /tokenize."""

from __future__ import annotations

import orjson
from aiohttp import web

from services.gateway import parameters
from services.gateway.generation import LARGE_BODY_BYTES, Served
from services.gateway.json_body import parse_object
from services.gateway.openai_request import read_messages, read_prompt
from services.gateway.routes import Exchange
from shared.errors import ClientError, Code

_TOKENIZE = frozenset({"model", "prompt", "messages"})


class Models:
    """Answers from what was loaded at the start."""

    def __init__(self, served: Served, block_tokens: int) -> None:
        self._served = served
        self._card: dict[str, object] = {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "baton",
            "max_model_len": served.text.context_tokens,
            "block_tokens": block_tokens,
            "capabilities": ["chat", "completions", "streaming"],
        }

    async def list(self, exchange: Exchange) -> web.StreamResponse:
        return json_answer(exchange, {"object": "list", "data": [self._card]})

    async def one(self, exchange: Exchange) -> web.StreamResponse:
        if exchange.tail != self._served.name:
            raise ClientError("there is no such model here", Code.MODEL_NOT_FOUND, "model")
        return json_answer(exchange, self._card)

    async def tokenize(self, exchange: Exchange) -> web.StreamResponse:
        """Ids of a prompt or of a conversation, as generation would see them."""
        text, raw = self._served.text, exchange.body
        bulk = len(raw) > LARGE_BODY_BYTES
        body = await text.run(lambda: parse_object(raw), bulk=True) if bulk else parse_object(raw)
        ignored = parameters.check(body, _TOKENIZE, strict=False)
        if body.get("model", self._served.name) != self._served.name:
            raise ClientError("there is no such model here", Code.MODEL_NOT_FOUND, "model")
        if ignored:
            exchange.headers["x-baton-ignored-params"] = ", ".join(ignored)
        if body.get("messages") is not None:
            tokens = await text.chat(read_messages(body))
        else:
            prompt = read_prompt(body, text.vocabulary_tokens)
            tokens = prompt if isinstance(prompt, tuple) else await text.plain(prompt)
        found = {"count": len(tokens), "max_model_len": text.context_tokens, "tokens": tokens}
        return json_answer(exchange, found)


def json_answer(exchange: Exchange, body: object) -> web.Response:
    """A 200 with JSON and the exchange's headers."""
    return web.Response(
        body=orjson.dumps(body), content_type="application/json", headers=exchange.headers
    )
