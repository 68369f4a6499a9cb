"""The bytes of one request: head, trace context and body, ready before they are due."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import orjson

from loadgen.load.plan import Asking
from loadgen.load.sockets import Address
from loadgen.load.wishes import NO_WISHES, Wishes
from loadgen.records import Row

_TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class Envelope:
    """Builds requests of one run. Raises ValueError at the start for a header that cannot be."""

    def __init__(self, asking: Asking, address: Address) -> None:
        self._asking = asking
        self._line = f"POST {address.prefix}{asking.path} HTTP/1.1\r\n"
        self._fixed = {
            "Host": address.authority,
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "User-Agent": "baton-loadgen",
            **dict(asking.headers),
        }
        groups = [hint.get("headers", {}).items() for hint in asking.hints.values()]
        for pairs in (asking.headers, *asking.tenant_headers.values(), *groups):
            for name, text in pairs:
                check_header(name, text)
        self._wishes: dict[str, object] = {
            "model": asking.model,
            "temperature": asking.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if asking.ignore_eos else {}),
            **({"return_token_ids": True} if asking.token_ids else {}),
        }

    def build(self, row: Row, prompt: Mapping[str, Any], wishes: Wishes = NO_WISHES) -> bytes:
        """Names the row's trace. `prompt` is the body's part that says what is asked; what flags
        say outweighs the row's own `wishes`."""
        asking = self._asking
        row.trace_id = row.trace_id or secrets.token_hex(16)
        hint = asking.hints.get(str(row.group)) or asking.hints.get("*") or {}
        body = orjson.dumps(
            {
                **prompt,
                **self._wishes,
                "max_tokens": row.wanted_output_tokens,
                **wishes.body,
                **asking.extra_body,
                **hint.get("body", {}),
            },
            option=orjson.OPT_SERIALIZE_NUMPY,
        )
        headers = {
            **self._fixed,
            **wishes.headers,
            **dict(asking.tenant_headers.get(row.tenant, ())),
            **hint.get("headers", {}),
            "traceparent": f"00-{row.trace_id}-{secrets.token_hex(8)}-01",
            "Content-Length": str(len(body)),
        }
        lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        return f"{self._line}{lines}\r\n".encode("latin-1") + body


def check_header(name: str, text: str) -> None:
    """Raises ValueError for what would break the head."""
    if not name or not set(name.lower()) <= _TOKEN:
        raise ValueError(f"{name!r} is not the name of a header")
    if not text.isprintable() or not text.isascii():
        raise ValueError(f"the header {name} has a value that cannot be sent")
