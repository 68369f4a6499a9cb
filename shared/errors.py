"""The drawn error tree: every failure that one part of Baton reports to another.

    BatonError                      has a `code` from a closed set
    ├── ClientError                 the caller must change something (4xx)
    ├── RefusedError                nothing ran; try elsewhere or later (429/503)
    ├── BusError                    a control message did not arrive, or no answer came
    │   ├── BusUnavailable          not connected
    │   ├── NoResponder             nobody listens there
    │   ├── BusTimeout              no answer in time
    │   └── PayloadTooLarge         refused locally, before sending
    ├── WireError                   bytes that are not a message of ours
    ├── TransferError               a page read did not deliver
    ├── CheckpointError             a model file is missing, damaged or of another kind
    ├── EngineError                 a step failed
    │   └── EngineLost              no step will run again: the worker ends
    └── StartupError                one clear line for the operator, exit code 2

Foreign exceptions are mapped to these in the adapter that met them.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Machine-readable reasons (`x-baton-reason`, `error.code`). A closed set."""

    INVALID_JSON = "invalid_json"
    INVALID_PARAMETER = "invalid_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    FORBIDDEN_PARAMETER = "forbidden_parameter"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    CONFLICTING_HINTS = "conflicting_hints"
    INVALID_API_KEY = "invalid_api_key"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_OFFERED = "not_offered"
    UNKNOWN_REQUEST = "unknown_request"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    CANCELLED = "cancelled"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    QUEUE_FULL = "queue_full"
    NO_WORKER = "no_worker"
    KV_PAGES_EXHAUSTED = "kv_pages_exhausted"
    CONTROL_PLANE_DOWN = "control_plane_down"
    DRAINING = "draining"
    LOADING = "loading"
    INCOMPATIBLE_WORKERS = "incompatible_workers"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    DEADLINE_UNATTAINABLE = "deadline_unattainable"
    INTERNAL = "internal"
    INTEGRITY_FAILED = "integrity_failed"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    POISON_REQUEST = "poison_request"
    STALE = "stale"
    WORKER_LOST = "worker_lost"
    TRANSFER_FAILED = "transfer_failed"
    CLIENT_GONE = "client_gone"
    CLIENT_TOO_SLOW = "client_too_slow"


class BatonError(Exception):
    """Root of the tree. `code` is closed; `message` never quotes client input."""

    code: Code = Code.INTERNAL

    def __init__(self, message: str, code: Code | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class ClientError(BatonError):
    """The request itself is wrong. `param` names the field, e.g. 'messages[2].content'."""

    code = Code.INVALID_PARAMETER

    def __init__(self, message: str, code: Code | None = None, param: str | None = None) -> None:
        super().__init__(message, code)
        self.param = param


class RefusedError(BatonError):
    """Nothing ran. `retry_after_s` is set where waiting helps."""

    code = Code.NO_WORKER

    def __init__(
        self, message: str, code: Code | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, code)
        self.retry_after_s = retry_after_s


class BusError(BatonError):
    """A control message did not arrive, or no answer came."""

    code = Code.CONTROL_PLANE_DOWN


class BusUnavailable(BusError):
    """The connection to NATS is down right now."""


class NoResponder(BusError):
    """Nobody is subscribed to the subject of a request."""

    code = Code.WORKER_LOST


class BusTimeout(BusError):
    """The peer did not answer within the deadline."""

    code = Code.WORKER_LOST


class PayloadTooLarge(BusError):
    """The encoded message is above the server's payload limit; it was not sent."""

    code = Code.BODY_TOO_LARGE


class WireError(BatonError):
    """Bytes that are not a message of ours: bad JSON, unknown type or version, wrong field."""

    code = Code.INVALID_PARAMETER


class TransferError(BatonError):
    """A page read did not deliver. `settled` says whether bytes can still land."""

    code = Code.TRANSFER_FAILED

    def __init__(self, message: str, code: Code | None = None, settled: bool = True) -> None:
        super().__init__(message, code)
        self.settled = settled


class CheckpointError(BatonError):
    """A model file is missing, truncated, damaged, or of an architecture we do not run."""


class EngineError(BatonError):
    """An engine step failed; the sequences in it did not advance."""


class EngineLost(EngineError):
    """The engine cannot run any more, as one of its processes is gone: the worker must end."""

    code = Code.WORKER_LOST


class StartupError(BatonError):
    """A service cannot start. The message is one line that says what to do."""
