"""Draws one request's trace in the terminal: who did what, when, for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_NAME_WIDTH: Final = 34
_SHOWN: Final = (
    "baton.transfer.bytes_raw",
    "baton.transfer.transport",
    "baton.transfer.pages",
    "baton.chunk.tokens",
    "baton.chunk.reused_tokens",
    "baton.place.route_reason",
    "baton.fetch.blocks",
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One span, ready to draw. Times in nanoseconds since the trace began."""

    service: str
    name: str
    depth: int
    start_ns: int
    duration_ns: int
    attributes: Mapping[str, Any]
    error: bool


def bars(spans: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Spans of one trace in tree order: parents before children, siblings by start."""
    known = {span["span_id"]: span for span in spans}
    children: dict[str, list[Mapping[str, Any]]] = {}
    for span in sorted(spans, key=lambda s: (s["start_ns"], s["end_ns"])):
        parent = span.get("parent_id") or ""
        children.setdefault(parent if parent in known else "", []).append(span)
    begin = min((span["start_ns"] for span in spans), default=0)
    ordered: list[Bar] = []
    stack = [(span, 0) for span in reversed(children.get("", []))]
    while stack:
        span, depth = stack.pop()
        ordered.append(
            Bar(
                service=span["service"],
                name=span["name"],
                depth=depth,
                start_ns=span["start_ns"] - begin,
                duration_ns=max(0, span["end_ns"] - span["start_ns"]),
                attributes=span.get("attributes", {}),
                error=bool(span.get("error")),
            )
        )
        below = children.get(span["span_id"], [])
        stack += [(child, depth + 1) for child in reversed(below)]
    return ordered


def render(spans: Sequence[Mapping[str, Any]], width: int = 120) -> str:
    """The waterfall as text, one line per span."""
    rows = bars(spans)
    if not rows:
        return "no spans"
    total_ns = max(bar.start_ns + bar.duration_ns for bar in rows) or 1
    track = max(20, width - _NAME_WIDTH - 12 - 22)
    services = sorted({bar.service for bar in rows})
    lines = [
        f"{len(rows)} spans, {len(services)} services ({', '.join(services)}), "
        f"{total_ns / 1e6:.1f} ms"
    ]
    lines += [_line(bar, total_ns, track) for bar in rows]
    return "\n".join(lines)


def _line(bar: Bar, total_ns: int, track: int) -> str:
    label = f"{'  ' * bar.depth}{bar.name}"[:_NAME_WIDTH]
    begin = min(track - 1, bar.start_ns * track // total_ns)
    length = max(1, bar.duration_ns * track // total_ns)
    drawn = (" " * begin + "█" * length)[:track]
    mark = "!" if bar.error else " "
    return (
        f"{bar.service:<10} {label:<{_NAME_WIDTH}}{mark}│{drawn:<{track}}│"
        f"{bar.duration_ns / 1e6:>9.2f} ms {_notes(bar.attributes)}"
    ).rstrip()


def _notes(attributes: Mapping[str, Any]) -> str:
    found = [f"{name.split('.')[-1]}={attributes[name]}" for name in _SHOWN if name in attributes]
    return " ".join(found)
