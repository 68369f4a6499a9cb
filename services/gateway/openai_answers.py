"""The OpenAI dialect's answers: chunks, whole bodies, usage. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.logprobs import LogprobForm
from services.gateway.session import Piece


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
    logprobs: LogprobForm | None = None
    """Set when the client asked for log-probabilities."""

    def first(self, choice: int) -> dict[str, object] | None:
        """The role chunk of a choice; completions have none."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk(Piece(choice), delta, None, ids=False) if self.chat else None

    def delta(self, piece: Piece) -> dict[str, object]:
        """A piece of text and the tokens it came from."""
        return self._chunk(piece, {"content": piece.text}, None)

    def finished(self, piece: Piece, reason: str) -> dict[str, object]:
        """The chunk that says why a choice ended; the piece has no text."""
        return self._chunk(piece, {}, reason)

    def usage(self, usage: Usage) -> dict[str, object]:
        """The chunk after the last one, if it was asked for."""
        return {**self._head(chunk=True), "choices": [], "usage": usage.body()}

    def whole(self, answers: Sequence[tuple[Piece, str]], usage: Usage) -> dict[str, object]:
        """The body of an answer that is not streamed: per choice all of it and its ending."""
        choices: list[dict[str, object]] = []
        for piece, reason in answers:
            choice: dict[str, object] = {"index": piece.choice, "finish_reason": reason}
            if self.chat:
                choice["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
            else:
                choice["text"] = piece.text
            choice["logprobs"] = self._logprobs(piece)
            if self.prompt_ids is not None:
                choice["token_ids"] = piece.ids
            choices.append(choice)
        body = {**self._head(chunk=False), "choices": choices, "usage": usage.body()}
        return self.with_prompt_ids(body)

    def with_prompt_ids(self, event: dict[str, object]) -> dict[str, object]:
        """The same event with the prompt's ids, where they were asked for."""
        return event if self.prompt_ids is None else {**event, "prompt_token_ids": self.prompt_ids}

    def _chunk(
        self, piece: Piece, delta: dict[str, str], reason: str | None, *, ids: bool = True
    ) -> dict[str, object]:
        choice: dict[str, object] = {"index": piece.choice, "finish_reason": reason}
        if self.chat:
            choice["delta"] = delta
        else:
            choice["text"] = piece.text
        choice["logprobs"] = self._logprobs(piece)
        if ids and self.prompt_ids is not None:
            choice["token_ids"] = piece.ids
        chunk = {**self._head(chunk=True), "choices": [choice]}
        if self.include_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, piece: Piece) -> dict[str, object] | None:
        if self.logprobs is None or not piece.told:
            return None
        form = self.logprobs
        return form.chat(piece.told) if self.chat else form.completion(piece.told)

    def _head(self, *, chunk: bool) -> dict[str, object]:
        kind = "text_completion"
        if self.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}
