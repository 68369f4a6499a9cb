"""Batches of spans to one OTLP/HTTP address as JSON, over one connection that is kept open.

Blocks; lives in a thread of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import orjson

from shared.telemetry.otlp_json import request_body
from shared.telemetry.span import Span

ATTEMPT_S: Final = 5.0
_PAUSES_S: Final = (0.25, 0.5, 1.0, 2.0)
"""Between tries: a store that begins later than we do shall still get the first spans."""
_TRY_AGAIN: Final = (429, 502, 503, 504)


class OtlpHttp:
    """One address: http or https."""

    def __init__(self, url: str, resource: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        self._resource = resource
        self._connection: http.client.HTTPConnection | None = None
        self._given_up = False

    def send(self, spans: Sequence[Span], stop: threading.Event) -> bool:
        try:
            body = request_body(spans, self._resource)
        except orjson.JSONEncodeError:
            return False
        for pause_s in (*_PAUSES_S, 0.0):
            status = self._post(body)
            if 200 <= status < 300:
                return True
            if status and status not in _TRY_AGAIN:
                return False
            if self._given_up or not pause_s or stop.wait(pause_s):
                return False
        return False

    def give_up(self) -> None:
        self._given_up = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _post(self, body: bytes) -> int:
        """The status; 0: nobody answered. A kept connection may have been closed meanwhile: then
        once more on a new one."""
        for kept in (self._connection is not None, False):
            try:
                return self._once(body)
            except (OSError, http.client.HTTPException):
                self.close()
                if not kept or self._given_up:
                    return 0
        return 0

    def _once(self, body: bytes) -> int:
        connection = self._connection
        if connection is None:
            connection = self._make(self._host, self._port, timeout=ATTEMPT_S)
            self._connection = connection
        connection.request("POST", self._path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read(1 << 20)
        return answer.status
