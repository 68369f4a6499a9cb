"""Where the time to the first token went, from the spans of one trace.

Cut points lie on the path of the request and are consecutive, so the parts add up to the total
exactly, in whole nanoseconds. Gateway cuts are of one clock; what the worker did enters as
durations of its own clock, and the rest of the gateway's interval is the two ways over the bus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

Span = Mapping[str, Any]

PARTS: Final = (
    "receive", "parse", "render", "admit", "retried", "place", "reserve", "bus_out",
    "prefill_queue", "fetch", "compute", "sample", "bus_back", "emit",
)  # fmt: skip
_ON_WORKER: Final = ("prefill_queue", "fetch", "compute", "sample")


@dataclass(frozen=True, slots=True)
class Split:
    """Parts in order, each in nanoseconds, zero where nothing happened."""

    total_ns: int
    parts: tuple[tuple[str, int], ...]
    clock_suspect: bool
    """The worker's share is longer than the gateway waited: their clocks disagree."""
    missing: tuple[str, ...]
    """Spans that would have told more; their time lies in the part that follows."""


def split_ttft(spans: Sequence[Span]) -> Split | None:
    """None: the trace has no root, or no token was sent."""
    root = _first(spans, lambda s: s["kind"] == 2 and s["service"].endswith("gateway"))
    stream = _first(spans, lambda s: s["name"] == "gateway.stream")
    if root is None or stream is None:
        return None
    first_ns = max(root["start_ns"], stream["start_ns"])
    sent_s = stream["attributes"].get("baton.stream.first_write_s", 0.0)
    written_ns = first_ns + max(0, round(sent_s * 1e9) if isinstance(sent_s, int | float) else 0)
    attempts = sorted(_named(spans, "gateway.attempt"), key=lambda s: int(s["start_ns"]))
    begun = [span for span in attempts if span["start_ns"] <= first_ns]
    serving = begun[-1] if begun else None
    below = _below(spans, serving)
    together = any(s["name"] == "prefill.first_token" and "decode" in s["service"] for s in below)
    parts, missing, at_ns = dict.fromkeys(PARTS, 0), list[str](), int(root["start_ns"])
    for name, cut_ns in _gateway_cuts(spans, begun, first_ns):
        if name == "reserve" and together:
            continue  # the worker computes while its answer travels
        if cut_ns is None:
            missing.append(name)
            continue
        parts[name] = min(max(cut_ns, at_ns), first_ns) - at_ns
        at_ns += parts[name]
    suspect = _split_worker(parts, below, (at_ns, first_ns), missing)
    parts["emit"] = written_ns - first_ns
    return Split(written_ns - root["start_ns"], tuple(parts.items()), suspect, tuple(missing))


def _gateway_cuts(
    spans: Sequence[Span], begun: Sequence[Span], first_ns: int
) -> list[tuple[str, int | None]]:
    """Where each part ends, all on the gateway's clock."""
    parse = _first(spans, lambda s: s["name"] == "gateway.parse")
    render = _first(spans, lambda s: s["name"] == "gateway.render")
    serving = begun[-1] if begun else None
    return [
        ("receive", _time(parse, "start_ns")),
        ("parse", _time(parse, "end_ns")),
        ("render", _time(render, "end_ns")),
        ("admit", _time(begun[0] if begun else None, "start_ns")),
        ("retried", _time(serving, "start_ns")),
        ("place", _event_ns(serving, "placed", "", first_ns)),
        ("reserve", _event_ns(serving, "accepted", "decode", first_ns)),
    ]


def _split_worker(
    parts: dict[str, int], below: Sequence[Span], interval: tuple[int, int], missing: list[str]
) -> bool:
    """Fill what lies between the accepted job and the first token. Whether clocks disagree."""
    begin_ns, end_ns = interval
    waited_ns = max(0, end_ns - begin_ns)
    cuts = _worker_cuts(below)
    if cuts is None:
        missing.append("prefill")
        parts["bus_back"] = waited_ns
        return False
    spent = [max(0, later - earlier) for earlier, later in pairwise(cuts)]
    bus_ns = waited_ns - sum(spent)
    if bus_ns < 0:
        spent[spent.index(max(spent))] += bus_ns
        if min(spent) < 0:
            spent = [0] * (len(spent) - 1) + [waited_ns]
    parts.update(zip(_ON_WORKER, spent, strict=True))
    parts["bus_out"] = min(max(0, cuts[0] - begin_ns), max(0, bus_ns))
    parts["bus_back"] = max(0, bus_ns) - parts["bus_out"]
    return bus_ns < 0


def _worker_cuts(below: Sequence[Span]) -> list[int] | None:
    """Job there, its turn, computing, computed, token: of one worker's clock, in order."""
    chunks = sorted(_named(below, "prefill.chunk"), key=lambda s: int(s["start_ns"]))
    token = _first(below, lambda s: s["name"] == "prefill.first_token")
    if token is None or not chunks:
        return None
    job = _first(below, lambda s: s["span_id"] == token["parent_id"])
    computed = [c for c in chunks if c["start_ns"] <= token["end_ns"]] or chunks[:1]
    queue = _first(below, lambda s: s["name"] == "prefill.queue")
    raw = [
        min(_time(job, "start_ns") or computed[0]["start_ns"], computed[0]["start_ns"]),
        _time(queue, "end_ns") or 0,
        computed[0]["start_ns"],
        computed[-1]["end_ns"],
        token["end_ns"],
    ]
    raw[1] = min(raw[1], raw[2])
    for place in range(1, len(raw)):
        raw[place] = max(raw[place], raw[place - 1])
    return raw


def _below(spans: Sequence[Span], parent: Span | None) -> list[Span]:
    """All descendants of a span."""
    if parent is None:
        return []
    found, known = list[Span](), {parent["span_id"]}
    for span in sorted(spans, key=lambda s: int(s["start_ns"])):
        if span["parent_id"] in known:
            known.add(span["span_id"])
            found.append(span)
    rest = [span for span in spans if span["parent_id"] in known and span not in found]
    return found + rest


def _named(spans: Iterable[Span], name: str) -> list[Span]:
    return [span for span in spans if span["name"] == name]


def _first(spans: Iterable[Span], fits: Any) -> Span | None:
    found = [span for span in spans if fits(span)]
    return min(found, key=lambda s: int(s["start_ns"])) if found else None


def _time(span: Span | None, which: str) -> int | None:
    return None if span is None else int(span[which])


def _event_ns(span: Span | None, name: str, what: str, before_ns: int) -> int | None:
    """When it first happened, if that was before the first token."""
    times = [
        int(event["time_ns"])
        for event in ([] if span is None else span["events"])
        if event["name"] == name and (not what or event["attributes"].get("what") == what)
    ]
    return min((moment for moment in times if moment <= before_ns), default=None)
