"""The OpenAI dialect's answers: chunks, whole bodies, usage. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens consumed and emitted."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def body(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What stays the same over one answer."""

    id: str
    model: str
    created: int
    chat: bool
    include_usage: bool
    prompt_ids: tuple[int, ...] | None = None
    """Set when the client asked for token ids: the prompt's come once, the rest with their text."""

    def first(self) -> dict[str, object] | None:
        """The role chunk; completions have none."""
        return self._chunk({"role": "assistant", "content": ""}, None) if self.chat else None

    def delta(self, text: str, ids: Sequence[int]) -> dict[str, object]:
        """A piece of text and the tokens it came from."""
        chunk = self._chunk({"content": text}, None) if self.chat else self._piece(text, None)
        return self._with_ids(chunk, ids)

    def finished(self, reason: str, ids: Sequence[int]) -> dict[str, object]:
        """The chunk that says why it ended; `ids` are tokens without a text of their own."""
        chunk = self._chunk({}, reason) if self.chat else self._piece("", reason)
        return self._with_ids(chunk, ids)

    def usage(self, usage: Usage) -> dict[str, object]:
        """The chunk after the last one, if it was asked for."""
        return {**self._head(chunk=True), "choices": [], "usage": usage.body()}

    def whole(self, text: str, reason: str, usage: Usage, ids: Sequence[int]) -> dict[str, object]:
        """The body of an answer that is not streamed."""
        choice: dict[str, object] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        body = {**self._head(chunk=False), "choices": [choice], "usage": usage.body()}
        return self.with_prompt_ids(self._with_ids(body, ids))

    def with_prompt_ids(self, event: dict[str, object]) -> dict[str, object]:
        """The same event with the prompt's ids, where they were asked for."""
        return event if self.prompt_ids is None else {**event, "prompt_token_ids": self.prompt_ids}

    def _with_ids(self, event: dict[str, object], ids: Sequence[int]) -> dict[str, object]:
        if self.prompt_ids is not None and isinstance(choices := event["choices"], list):
            choices[0]["token_ids"] = list(ids)
        return event

    def _chunk(self, delta: dict[str, object], reason: str | None) -> dict[str, object]:
        return self._with_choice({"index": 0, "delta": delta, "finish_reason": reason})

    def _piece(self, text: str, reason: str | None) -> dict[str, object]:
        return self._with_choice({"index": 0, "text": text, "finish_reason": reason})

    def _with_choice(self, choice: dict[str, object]) -> dict[str, object]:
        choice["logprobs"] = None
        chunk = {**self._head(chunk=True), "choices": [choice]}
        if self.include_usage:
            chunk["usage"] = None
        return chunk

    def _head(self, *, chunk: bool) -> dict[str, object]:
        kind = "text_completion"
        if self.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}
