"""What travels beside a message: trace context, time left, epoch.

A deadline is always time *left*, re-stamped at each hop: no clock is shared between hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
DEADLINE_MS: Final = "baton-deadline-ms"
EPOCH: Final = "baton-epoch"
_MAX_FIELD: Final = 512


@dataclass(frozen=True, slots=True)
class Headers:
    """Typed view of a message's headers. Bad or oversized values read as absent."""

    traceparent: str = ""
    tracestate: str = ""
    deadline_s: float | None = None
    epoch: int | None = None

    def encode(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        if self.traceparent:
            fields[TRACEPARENT] = self.traceparent
        if self.tracestate:
            fields[TRACESTATE] = self.tracestate
        if self.deadline_s is not None:
            fields[DEADLINE_MS] = str(max(0, round(self.deadline_s * 1000)))
        if self.epoch is not None:
            fields[EPOCH] = str(self.epoch)
        return fields

    @classmethod
    def decode(cls, fields: dict[str, str] | None) -> Headers:
        if not fields:
            return cls()
        deadline_ms = _number(fields.get(DEADLINE_MS))
        return cls(
            traceparent=_text(fields.get(TRACEPARENT)),
            tracestate=_text(fields.get(TRACESTATE)),
            deadline_s=None if deadline_ms is None else deadline_ms / 1000,
            epoch=_number(fields.get(EPOCH)),
        )


def _text(value: str | None) -> str:
    return value if value is not None and len(value) <= _MAX_FIELD and value.isascii() else ""


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and len(value) <= 18 and value.isdecimal() else None
