"""W3C trace context as plain strings: read strictly, written in one form, ids by chance.

Who is where in a trace; knows no span and no header.
"""

from __future__ import annotations

import hashlib
import random
import re
import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_FORM: Final = re.compile(
    r"[ \t]*([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?[ \t]*"
)
_CHANCE: Final = random.Random(secrets.randbits(256))
"""Ids must be distinct, not secret."""


@dataclass(frozen=True, slots=True)
class Context:
    """A place in a trace: ids in lower-case hex."""

    trace_id: str
    span_id: str
    flags: int

    @property
    def sampled(self) -> bool:
        return bool(self.flags & 1)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


@lru_cache(maxsize=1024)
def read_context(traceparent: str) -> Context | None:
    """None: there is none, or it is no valid one. Of one request nearly all spans have the same
    few parents, so what was read is kept."""
    found = _FORM.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more):
        return None
    if trace_id == "0" * 32 or span_id == "0" * 16:
        return None
    return Context(trace_id, span_id, int(flags, 16))


def derived(parent: Context, name: str) -> Context:
    """The one place of this name under `parent`: both ends of a message know it."""
    told = f"{parent.trace_id} {parent.span_id} {name}".encode()
    span_id = hashlib.blake2b(told, digest_size=8).hexdigest()
    return Context(parent.trace_id, span_id, parent.flags & 1)


def below(parent: Context | None) -> Context:
    """A new place under `parent`, or the first one of a new trace."""
    span_id = f"{_CHANCE.getrandbits(64) or 1:016x}"
    if parent is None:
        return Context(f"{_CHANCE.getrandbits(128) or 1:032x}", span_id, 1)
    return Context(parent.trace_id, span_id, parent.flags & 1)
