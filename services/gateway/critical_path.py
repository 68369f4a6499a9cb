"""Which spans the client waited for: the way back from the end of the answer to its begin.

Only spans that do work count; those that merely contain others or go on beside them do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

_WORK: Final = frozenset((
    "gateway.parse", "gateway.render", "gateway.admit", "scheduler.place", "decode.reserve",
    "prefill.queue", "prefill.fetch", "kvpool.lookup", "prefill.chunk", "prefill.first_token",
    "transfer.pull", "decode.verify", "decode.queue", "decode.generate",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segment:
    """From one instant to a later one the client waited for this span; '': for a message, or for
    something without a span."""

    span_id: str
    start_ns: int
    end_ns: int


def critical_path(spans: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """Segments in order of time, without a gap, from the start of the root to its end. Empty
    where there is no root."""
    roots = [s for s in spans if s["kind"] == 2 and s["service"].endswith("gateway")]
    if not roots:
        return []
    root = min(roots, key=lambda s: int(s["start_ns"]))
    begin_ns, at_ns = int(root["start_ns"]), int(root["end_ns"])
    work = [span for span in spans if _counts(span)]
    found: list[Segment] = []
    while at_ns > begin_ns:
        started = [span for span in work if begin_ns <= span["start_ns"] < at_ns]
        if not started:
            found.append(Segment("", begin_ns, at_ns))
            break
        last = max(started, key=lambda s: (min(int(s["end_ns"]), at_ns), int(s["start_ns"])))
        end_ns = min(int(last["end_ns"]), at_ns)
        if end_ns < at_ns:
            found.append(Segment("", end_ns, at_ns))
        found.append(Segment(last["span_id"], int(last["start_ns"]), end_ns))
        work = [span for span in started if span is not last]
        at_ns = int(last["start_ns"])
    return _with_stream(found[::-1], spans)


def _with_stream(path: list[Segment], spans: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """After the last token was made the client waits for the stream that brings it."""
    streams = [span for span in spans if span["name"] == "gateway.stream"]
    if path and streams and not path[-1].span_id and streams[0]["start_ns"] < path[-1].end_ns:
        path[-1] = replace(path[-1], span_id=str(streams[0]["span_id"]))
    return path


def _counts(span: Mapping[str, Any]) -> bool:
    """Moments take no time; copies into the pool go on behind the request's back."""
    if span["end_ns"] <= span["start_ns"]:
        return False
    behind = span["name"] == "transfer.pull" and span["service"].endswith("kvpool")
    return span["name"] in _WORK and not behind
