"""Bytes of a request body to a JSON object, strictly: one parser, no duplicate keys, bounded.

orjson already refuses NaN, lone surrogates, bad UTF-8, BOMs and deep nesting; it lets the last
of two equal keys win. Each key that was written has a colon, so the colons of the body are
compared with the keys that survived and the colons inside the strings that survived.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from shared.errors import ClientError, Code

MAX_DEPTH: Final = 32
MAX_VALUES: Final = 1_000_000
_HIDDEN_COLON: Final = re.compile(rb"\\u003a", re.IGNORECASE)
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"([ \t\r\n]*+:)?', re.DOTALL)
"""In valid JSON a string that a colon follows is a key, and nothing else is."""


def parse_object(body: bytes) -> dict[str, object]:
    """The object. Raises ClientError (invalid_json); the message never quotes the body."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _invalid("the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise _invalid("the body must be a JSON object")
    kept, colons = _count(value)
    if _HIDDEN_COLON.search(body):
        colons, written = 0, sum(1 for found in _STRING.finditer(body) if found[1] is not None)
    else:
        written = body.count(b":")
    if written != kept + colons:
        raise _invalid("the body holds the same key twice")
    return value


def _count(root: dict[str, object]) -> tuple[int, int]:
    """Keys of all objects, and colons inside all strings. Raises ClientError for too much depth
    or too many values."""
    keys = colons = values = 0
    level: list[object] = [root]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for entry in level:
            if isinstance(entry, dict):
                keys += len(entry)
                colons += sum(key.count(":") for key in entry)
                children: list[object] = list(entry.values())
            elif isinstance(entry, list):
                children = entry
            else:
                continue
            values += len(children)
            if values > MAX_VALUES:
                raise _invalid("the body holds too many values")
            colons += sum(child.count(":") for child in children if isinstance(child, str))
            below += [child for child in children if isinstance(child, dict | list)]
        if not below:
            return keys, colons
        level = below
    raise _invalid("the body is nested too deeply")


def _invalid(message: str) -> ClientError:
    return ClientError(message, Code.INVALID_JSON)
