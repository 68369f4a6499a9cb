"""From our errors to HTTP: status, OpenAI error object, retry headers. A fixed catalogue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import orjson
from aiohttp import web

from shared.errors import BatonError, ClientError, Code, RefusedError

STATUS: Final[dict[Code, int]] = {
    Code.INVALID_JSON: 400,
    Code.INVALID_PARAMETER: 400,
    Code.UNSUPPORTED_PARAMETER: 400,
    Code.FORBIDDEN_PARAMETER: 400,
    Code.CONTEXT_LENGTH_EXCEEDED: 400,
    Code.CONFLICTING_HINTS: 400,
    Code.INVALID_API_KEY: 401,
    Code.MODEL_NOT_FOUND: 404,
    Code.NOT_OFFERED: 404,
    Code.UNKNOWN_REQUEST: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.REQUEST_TIMEOUT: 408,
    Code.CANCELLED: 409,
    Code.BODY_TOO_LARGE: 413,
    Code.UNSUPPORTED_MEDIA_TYPE: 415,
    Code.QUEUE_FULL: 503,
    Code.NO_WORKER: 503,
    Code.KV_PAGES_EXHAUSTED: 503,
    Code.CONTROL_PLANE_DOWN: 503,
    Code.DRAINING: 503,
    Code.LOADING: 503,
    Code.INCOMPATIBLE_WORKERS: 503,
    Code.WORKER_LOST: 503,
    Code.TRANSFER_FAILED: 503,
    Code.STALE: 503,
    Code.DEADLINE_UNATTAINABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
    Code.INTERNAL: 500,
    Code.INTEGRITY_FAILED: 500,
    Code.ATTEMPTS_EXHAUSTED: 500,
    Code.POISON_REQUEST: 500,
    Code.CLIENT_GONE: 499,
    Code.CLIENT_TOO_SLOW: 499,
}
_TYPE: Final = {
    401: "authentication_error",
    404: "not_found_error",
    500: "server_error",
    503: "unavailable_error",
    504: "timeout_error",
}
SERVER: Final = "baton"
_FINAL: Final = frozenset({Code.INTEGRITY_FAILED, Code.POISON_REQUEST})


@dataclass(frozen=True, slots=True)
class Refusal:
    """One error as the client sees it."""

    code: Code
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    @property
    def status(self) -> int:
        return STATUS[self.code]

    def body(self, request_id: str) -> dict[str, object]:
        """The error object, in a whole answer or as the last event of a stream."""
        error: dict[str, object] = {
            "message": self.message,
            "type": _TYPE.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code.value,
            "request_id": request_id,
        }
        if self._retry_s is not None:
            error["retry_after_ms"] = round(self._retry_s * 1000)
        return {"error": error}

    @property
    def _retry_s(self) -> float | None:
        if self.status != 503:
            return None
        return min(30.0, max(1.0, self.retry_after_s or 1.0))

    def headers(self) -> dict[str, str]:
        headers = {"Server": SERVER, "x-baton-reason": self.code.value}
        retry = self.status >= 500 and self.code not in _FINAL
        headers["x-should-retry"] = "true" if retry else "false"
        if self._retry_s is not None:
            headers["Retry-After"] = str(math.ceil(self._retry_s))
            headers["retry-after-ms"] = str(round(self._retry_s * 1000))
        return headers

    def response(self, request_id: str, extra: dict[str, str] | None = None) -> web.Response:
        """The whole answer. Nothing of the request is in it but our own id."""
        headers = {**self.headers(), "x-baton-request-id": request_id, **(extra or {})}
        body = orjson.dumps(self.body(request_id))
        answer = web.Response(
            status=self.status, body=body, headers=headers, content_type="application/json"
        )
        if self.code in (Code.REQUEST_TIMEOUT, Code.BODY_TOO_LARGE):
            answer.force_close()
        return answer


class Unanswered(BatonError):
    """The cluster gave a request up before its answer began."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, refusal.code)
        self.refusal = refusal


def refusal_of(error: BatonError) -> Refusal:
    """How an error of ours is told to the client."""
    match error:
        case Unanswered():
            return error.refusal
        case ClientError():
            return Refusal(error.code, error.message, error.param)
        case RefusedError():
            return Refusal(error.code, error.message, None, error.retry_after_s)
        case _:
            return Refusal(error.code, "the request failed inside the cluster")
