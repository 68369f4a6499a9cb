"""Stand-ins for spans whose process died before it could send them, so that no span hangs in the
air and every job that a worker took is in the picture.

A job's span has an id that follows from its attempt, so the gateway's `gateway.send` tells which
one is missing, whose it was and when it began; of other missing parents only the id is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shared.telemetry.context import Context, derived

Span = Mapping[str, Any]

LOST: Final = "baton.lost"
_WHY: Final = "its process ended before it could send it, or has not sent it yet"
_SERVER: Final = 2
_CONSUMER: Final = 5
_INTERNAL: Final = 1


def with_stand_ins(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spans of one trace, and what is missing among them; as they are while the root is
    missing itself, for then more may come."""
    roots = [span for span in spans if span["kind"] == _SERVER and _ours(span, "gateway")]
    if not roots:
        return spans
    root = min(roots, key=lambda span: int(span["start_ns"]))
    known = {span["span_id"] for span in spans}
    made = [job for send in spans if (job := _job(send, known, spans)) is not None]
    known |= {span["span_id"] for span in made}
    orphans: dict[str, list[Span]] = {}
    for span in spans:
        if span["parent_id"] and span["parent_id"] not in known and span is not root:
            orphans.setdefault(span["parent_id"], []).append(span)
    made += [_unknown(name, children, root) for name, children in orphans.items()]
    return sorted(spans + made, key=lambda span: (span["start_ns"], span["end_ns"]))


def _job(send: Span, known: set[str], spans: Sequence[Span]) -> dict[str, Any] | None:
    """The span of a job that a worker accepted and never told of."""
    said = send["attributes"]
    role = said.get("baton.role")
    if send["name"] != "gateway.send" or said.get("baton.answer") != "accepted" or not role:
        return None
    name = f"{role}.job"
    own = derived(Context(send["trace_id"], send["parent_id"], 1), name).span_id
    if own in known:
        return None
    ends = [int(span["end_ns"]) for span in spans if span["parent_id"] == own]
    worker = str(said.get("baton.worker", ""))
    facts = {"baton.worker": worker, "baton.attempt": said.get("baton.attempt", 0)}
    where = (f"baton-{role}", worker)
    times = (int(send["start_ns"]), max([int(send["end_ns"]), *ends]))
    return _stand_in((send["trace_id"], own, send["parent_id"]), where, name, times, facts)


def _unknown(name: str, children: Sequence[Span], root: Span) -> dict[str, Any]:
    """Whatever it was, these lie below it."""
    first = min(children, key=lambda span: int(span["start_ns"]))
    times = (int(first["start_ns"]), max(int(span["end_ns"]) for span in children))
    ids = (root["trace_id"], name, root["span_id"])
    return _stand_in(ids, (first["service"], ""), "lost", times, {})


def _stand_in(
    ids: tuple[str, str, str],
    where: tuple[str, str],
    name: str,
    times: tuple[int, int],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    trace_id, span_id, parent_id = ids
    return {
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": parent_id,
        "service": where[0],
        "worker": where[1],
        "name": name,
        "kind": _CONSUMER if name.endswith(".job") else _INTERNAL,
        "start_ns": times[0],
        "end_ns": times[1],
        "error": True,
        "attributes": {LOST: _WHY, "error.type": "lost", **facts},
        "events": [],
        "links": [],
    }


def _ours(span: Span, service: str) -> bool:
    return str(span["service"]).endswith(service)
