"""Bytes of a request body to a JSON object, strictly: one parser, no duplicate keys, bounded.

orjson already refuses NaN, lone surrogates, bad UTF-8, BOMs and deep nesting; it lets the last
of two equal keys win, so keys are counted in the text and compared with the keys that survived.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from shared.errors import ClientError, Code

MAX_DEPTH: Final = 32
MAX_VALUES: Final = 1_000_000
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
    kept = _count_keys(value)
    written = sum(1 for found in _STRING.finditer(body) if found[1] is not None)
    if written != kept:
        raise _invalid("the body holds the same key twice")
    return value


def _count_keys(root: dict[str, object]) -> int:
    """Keys of all objects. Raises ClientError for too much depth or too many values."""
    keys = values = 0
    level: list[object] = [root]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for entry in level:
            if isinstance(entry, dict):
                keys += len(entry)
                children: list[object] = list(entry.values())
            elif isinstance(entry, list):
                children = entry
            else:
                continue
            values += len(children)
            if values > MAX_VALUES:
                raise _invalid("the body holds too many values")
            below += [child for child in children if isinstance(child, dict | list)]
        if not below:
            return keys
        level = below
    raise _invalid("the body is nested too deeply")


def _invalid(message: str) -> ClientError:
    return ClientError(message, Code.INVALID_JSON)
