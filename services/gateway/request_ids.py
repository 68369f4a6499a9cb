"""Makes request ids: 26 characters, sortable by time, never repeated."""

from __future__ import annotations

import secrets
from typing import Final

from shared.clock import Clock
from shared.ids import RequestId

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS: Final = 80
_CHARACTERS: Final = 26


def new_request_id(clock: Clock) -> RequestId:
    """48 bits of milliseconds, then 80 random bits, five bits a character."""
    milliseconds = clock.unix_ns(clock.now()) // 1_000_000
    value = (milliseconds & (2**48 - 1)) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    shifts = range(5 * (_CHARACTERS - 1), -1, -5)
    return RequestId("".join(_ALPHABET[value >> shift & 31] for shift in shifts))
