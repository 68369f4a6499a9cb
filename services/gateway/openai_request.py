"""The OpenAI dialect's requests: parsed bodies to one internal, validated request.

The internal request is another type than the body; nothing is copied by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.gateway import fields, parameters
from services.gateway.chat_template import ChatMessage
from services.gateway.core.events import Hints
from services.gateway.fields import Body, refuse
from services.gateway.hints import read_body
from services.gateway.priority import read_priority
from services.gateway.sampling import MAX_CHOICES, MAX_TOKENS_FIELD, read_sampling
from shared.errors import Code
from shared.wire.sampling import Sampling

MAX_MESSAGES: Final = 2_048
COMPLETION_TOKENS: Final = 16
_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What both endpoints share."""

    model: str
    max_tokens: int | None
    """None: as many as there is room for."""
    max_tokens_field: str
    """The field that said so; empty when none did."""
    sampling: Sampling
    """The first choice's; its `max_tokens` is not known yet."""
    choices: int
    priority: int
    """-100 to 100, higher is sooner."""
    hints: Hints
    """Of the body."""
    stop: tuple[str, ...]
    include_stop: bool
    """The stop string that matched is part of the text."""
    stream: bool
    include_usage: bool
    return_token_ids: bool
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    messages: tuple[ChatMessage, ...]
    generation: Generation


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    prompt: str | tuple[int, ...]
    generation: Generation


def read_chat(body: Body, vocabulary_tokens: int, strict: bool) -> ChatRequest:
    """Raises ClientError naming the first field that is wrong."""
    ignored = parameters.check(body, parameters.CHAT, strict)
    sampling = read_sampling(body, vocabulary_tokens, chat=True)
    return ChatRequest(read_messages(body), _generation(body, sampling, ignored, None))


def read_completion(body: Body, vocabulary_tokens: int, strict: bool) -> CompletionRequest:
    """Raises ClientError naming the first field that is wrong."""
    ignored = parameters.check(body, parameters.COMPLETIONS, strict)
    prompt = read_prompt(body, vocabulary_tokens)
    sampling = read_sampling(body, vocabulary_tokens, chat=False)
    return CompletionRequest(prompt, _generation(body, sampling, ignored, COMPLETION_TOKENS))


def _generation(
    body: Body, sampling: Sampling, ignored: tuple[str, ...], max_tokens: int | None
) -> Generation:
    model = fields.text(body, "model", limit=256)
    stream = fields.boolean(body, "stream")
    first = fields.integer(body, "max_completion_tokens", 1, MAX_TOKENS_FIELD)
    second = fields.integer(body, "max_tokens", 1, MAX_TOKENS_FIELD)
    wanted, field = (second, "max_tokens") if first is None else (first, "max_completion_tokens")
    return Generation(
        model=model,
        max_tokens=max_tokens if wanted is None else wanted,
        max_tokens_field="" if wanted is None else field,
        sampling=sampling,
        priority=read_priority(body),
        hints=read_body(body),
        choices=fields.integer(body, "n", 1, MAX_CHOICES) or 1,
        stop=fields.stops(body),
        include_stop=fields.boolean(body, "include_stop_str_in_output"),
        stream=stream,
        include_usage=fields.stream_options(body, stream),
        return_token_ids=fields.boolean(body, "return_token_ids"),
        ignored=ignored,
    )


def read_messages(body: Body) -> tuple[ChatMessage, ...]:
    """The conversation: known roles, text only."""
    value = body.get("messages")
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        refuse("messages", f"must be a list of 1 to {MAX_MESSAGES} messages")
    return tuple(_message(entry, f"messages[{index}]") for index, entry in enumerate(value))


def _message(value: object, param: str) -> ChatMessage:
    if not isinstance(value, dict):
        refuse(param, "must be an object")
    role = value.get("role")
    if role == "tool":
        refuse(f"{param}.tool_call_id", "must name an earlier tool call")
    if not isinstance(role, str) or role not in _ROLES:
        refuse(f"{param}.role", "must be system, developer, user, assistant or tool")
    for name in ("tool_calls", "function_call", "audio", "refusal"):
        if value.get(name):
            refuse(f"{param}.{name}", "is not supported", Code.UNSUPPORTED_PARAMETER)
    content = _content(value.get("content"), f"{param}.content")
    if role == "user" and not content:
        refuse(f"{param}.content", "must not be empty")
    return ChatMessage(_ROLES[role], content)


def _content(value: object, param: str) -> str:
    """A string, or the text parts of a list."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        refuse(param, "must be a string or a list of text parts")
    texts: list[str] = []
    for index, part in enumerate(value):
        place = f"{param}[{index}]"
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            refuse(place, "must be an object with a type")
        if part["type"] != "text":
            refuse(place, "must be a text part", Code.UNSUPPORTED_PARAMETER)
        if not isinstance(part.get("text"), str):
            refuse(f"{place}.text", "must be a string")
        texts.append(part["text"])
    return "".join(texts)


def read_prompt(body: Body, vocabulary_tokens: int) -> str | tuple[int, ...]:
    """One prompt: a string or token ids. A list with one of either is the same."""
    value = body.get("prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list) or not value:
        refuse("prompt", "must be a non-empty string or a list of token ids")
    if any(isinstance(entry, str | list) for entry in value):
        refuse("prompt", "must be one prompt", Code.UNSUPPORTED_PARAMETER)
    for entry in value:
        if type(entry) is not int or not 0 <= entry < vocabulary_tokens:
            refuse("prompt", f"must hold token ids from 0 to {vocabulary_tokens - 1}")
    return tuple(value)
