"""How the weightless engine chooses a printable token: by a digest of everything it is told.

A history that was rebuilt wrongly, a lost bias or a ban that was not lifted gives another token.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

from shared.engine.batch import Draw
from shared.wire.sampling import TokenLogprobs

_FIRST: Final = 32
_PRINTABLE: Final = 95
_EXCLUDED_BELOW: Final = -50.0
"""A bias below takes a token out, one above its opposite makes it the only one."""
_HALVES: Final = 16
"""Log-probabilities are told in steps of a half."""


class Digest(Protocol):
    """What a hash of xxhash offers."""

    def update(self, content: bytes, /) -> None: ...

    def intdigest(self) -> int: ...


def choose(content: Digest, draw: Draw) -> tuple[int, TokenLogprobs | None]:
    """The token after `content`, the digest of all pages, and what is told of it."""
    if not draw.plain:
        _mix(content, draw)
    if draw.top_k or draw.min_p:
        content.update(struct.pack("<Qd", draw.top_k, draw.min_p))
    word = content.intdigest()
    options = _options(draw)
    token = options[word % len(options)]
    return token, None if draw.logprobs is None else _tell(word, token, draw.logprobs)


def _mix(content: Digest, draw: Draw) -> None:
    biases = zip(draw.bias_ids, draw.biases, strict=True)
    content.update(b"".join(struct.pack("<qd", token, bias) for token, bias in biases))
    penalties = draw.penalties
    if penalties is not None:
        strengths = (penalties.repetition, penalties.presence, penalties.frequency)
        content.update(struct.pack("<dddQ", *strengths, penalties.prompt_tokens))
        content.update(penalties.history)


def _options(draw: Draw) -> list[int]:
    """Printable tokens that are neither banned nor biased out of reach. Never empty."""
    everything = range(_FIRST, _FIRST + _PRINTABLE)
    if draw.plain:
        return list(everything)
    biases = dict(zip(draw.bias_ids, draw.biases, strict=True))
    out = {token for token, bias in biases.items() if bias < _EXCLUDED_BELOW} | {*draw.banned}
    only = [token for token, bias in biases.items() if bias > -_EXCLUDED_BELOW]
    left = [token for token in only or everything if token not in out]
    return left or list(everything)


def _tell(word: int, token: int, count: int) -> TokenLogprobs:
    """Made up, but the same on every path: the drawn token leads, its successors follow."""
    logprob = -0.5 * ((word >> 8) % _HALVES)
    ids = tuple(_FIRST + (token - _FIRST + place) % _PRINTABLE for place in range(count))
    return TokenLogprobs(logprob, ids, tuple(logprob - 0.5 * place for place in range(count)))
