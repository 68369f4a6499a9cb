"""Log-probabilities as the OpenAI dialect tells them: tokens by their spelling and bytes.

One pass over the tokens that are new, whatever came before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shared.wire.sampling import TokenLogprobs

_PLACES: Final = 6
"""Decimal places: more than float32 is worth."""


@dataclass(frozen=True, slots=True)
class Told:
    """A token of an answer, where its text begins there, and what the model gave it."""

    token_id: int
    offset: int
    """Characters of the answer before the token's own."""
    logprobs: TokenLogprobs


class Spellings:
    """How single tokens are shown. A token that is no text by itself shows its bytes."""

    def __init__(self, table: Sequence[bytes], control: Mapping[str, int]) -> None:
        self._table = table
        self._control = {token: text for text, token in control.items()}

    def text(self, token: int) -> str:
        """Its text; `bytes:\\xe2\\x80` for a part of a character; a control token's name."""
        data = self._bytes(token)
        if not data:
            return self._control.get(token, "")
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def values(self, token: int) -> list[int] | None:
        """Its bytes, which joined over all tokens are the answer's; none for a control token."""
        return list(self._bytes(token)) or None

    def _bytes(self, token: int) -> bytes:
        return self._table[token] if token < len(self._table) else b""


class LogprobForm:
    """The `logprobs` object of a choice."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings

    def chat(self, told: Sequence[Told]) -> dict[str, object]:
        """Every token with its likeliest alternatives."""
        return {"content": [self._entry(one) for one in told], "refusal": None}

    def completion(self, told: Sequence[Told]) -> dict[str, object]:
        """Four lists of one length. The alternatives always name the drawn token; of two with
        one spelling the likelier counts."""
        spell = self._spellings.text
        alternatives = []
        for one in told:
            logs = one.logprobs
            found: dict[str, float] = {}
            for token, value in zip(logs.top_ids, logs.top_logprobs, strict=True):
                found.setdefault(spell(token), round(value, _PLACES))
            found.setdefault(spell(one.token_id), round(logs.logprob, _PLACES))
            alternatives.append(found)
        return {
            "tokens": [spell(one.token_id) for one in told],
            "token_logprobs": [round(one.logprobs.logprob, _PLACES) for one in told],
            "top_logprobs": alternatives,
            "text_offset": [one.offset for one in told],
        }

    def _entry(self, one: Told) -> dict[str, object]:
        logs = one.logprobs
        top = zip(logs.top_ids, logs.top_logprobs, strict=True)
        alternatives = [self._token(token, value) for token, value in top]
        return {**self._token(one.token_id, logs.logprob), "top_logprobs": alternatives}

    def _token(self, token: int, value: float) -> dict[str, object]:
        spellings = self._spellings
        shown, data = spellings.text(token), spellings.values(token)
        return {"token": shown, "logprob": round(value, _PLACES), "bytes": data}
