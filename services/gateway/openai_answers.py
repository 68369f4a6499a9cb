"""The OpenAI dialect's answers: chunks, whole bodies, usage. Values only."""

from __future__ import annotations

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

    def first(self) -> dict[str, object] | None:
        """The role chunk; completions have none."""
        return self._chunk({"role": "assistant", "content": ""}, None) if self.chat else None

    def delta(self, text: str) -> dict[str, object]:
        """A piece of text."""
        return self._chunk({"content": text}, None) if self.chat else self._piece(text, None)

    def finished(self, reason: str) -> dict[str, object]:
        """The chunk that says why it ended."""
        return self._chunk({}, reason) if self.chat else self._piece("", reason)

    def usage(self, usage: Usage) -> dict[str, object]:
        """The chunk after the last one, if it was asked for."""
        return {**self._head(chunk=True), "choices": [], "usage": usage.body()}

    def whole(self, text: str, reason: str, usage: Usage) -> dict[str, object]:
        """The body of an answer that is not streamed."""
        choice: dict[str, object] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        return {**self._head(chunk=False), "choices": [choice], "usage": usage.body()}

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
