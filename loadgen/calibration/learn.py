"""Fits a live run: prompt chunks, decode steps, handoffs and the way to a worker, each from its
own observations; and how far each fit is off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadgen.calibration.costs import Costs
from loadgen.calibration.least import fit
from loadgen.calibration.run_folder import RunError, Served, named, seconds

_FASTEST: Final = 1e12


@dataclass(frozen=True, slots=True)
class Learnt:
    """The costs, how many observations each fit had, and the mean share by which it is off."""

    costs: Costs
    observations: dict[str, int]
    off: dict[str, float]


def learn(
    name: str,
    rows: Sequence[Served],
    traces: Sequence[Sequence[Mapping[str, Any]]],
    kv_tokens: int,
) -> Learnt:
    """Raises RunError where a kind of observation is missing altogether."""
    chunks = [seen for spans in traces for seen in _chunks(spans)]
    if not chunks:
        raise RunError("no trace has a span prefill.chunk: nothing tells what a prompt costs")
    prefill = fit([seen[0] for seen in chunks], [seen[1] for seen in chunks])
    steps = _steps(rows)
    if not steps:
        raise RunError("no answer has two tokens: nothing tells what a decode step costs")
    decode = fit([seen[0] for seen in steps], [seen[1] for seen in steps])
    pulls = [seen for spans in traces for seen in _pulls(spans)]
    setup_s, byte_s = 0.0, 1 / _FASTEST
    if pulls:
        setup_s, byte_s = fit([(1.0, size) for size, _, _ in pulls], [s for _, _, s in pulls])
    ways = sorted(_ways(rows, traces))
    costs = Costs(
        name=name,
        step_s=prefill[0],
        token_s=prefill[1],
        pair_s=prefill[2],
        decode_step_s=decode[0],
        decode_token_s=decode[1],
        decode_sequence_s=decode[2],
        setup_s=setup_s,
        bytes_per_s=1 / max(byte_s, 1 / _FASTEST),
        front_s=ways[len(ways) // 2] if ways else 0.0,
        kv_token_bytes=_token_bytes(pulls),
        kv_tokens=kv_tokens,
    )
    observations = {"chunks": len(chunks), "answers": len(steps), "pulls": len(pulls)}
    off = {"prefill": _off(chunks, prefill), "decode": _off(steps, decode)}
    return Learnt(costs, observations | {"ways": len(ways)}, off)


_Seen = tuple[tuple[float, float, float], float]


def _chunks(spans: Sequence[Mapping[str, Any]]) -> list[_Seen]:
    """(1, new tokens, pairs) and seconds of each prompt chunk."""
    found: list[_Seen] = []
    at = 0
    for span in sorted(named(spans, "prefill.chunk"), key=lambda span: int(span["start_ns"])):
        told = span.get("attributes") or {}
        new = int(told.get("baton.chunk.tokens") or 0)
        at = int(told.get("baton.chunk.start") or at or told.get("baton.chunk.reused_tokens") or 0)
        if new > 0:
            found.append(((1.0, float(new), float((at + new) ** 2 - at**2)), seconds(span)))
        at += new
    return found


def _steps(rows: Sequence[Served]) -> list[_Seen]:
    """(1, context, sequences) and seconds a token of each answer: how many others decoded beside
    it, on average, is read from all rows' first and last tokens."""
    found: list[_Seen] = []
    for row in rows:
        span_s = row.last_s - row.first_s
        if row.output_tokens < 2 or span_s <= 0:
            continue
        beside = context = 0.0
        for other in rows:
            shared_s = min(row.last_s, other.last_s) - max(row.first_s, other.first_s)
            if shared_s > 0:
                beside += shared_s / span_s
                context += shared_s / span_s * (other.prompt_tokens + other.output_tokens / 2)
        found.append(((1.0, context, beside), row.tpot_s))
    return found


def _pulls(spans: Sequence[Mapping[str, Any]]) -> list[tuple[float, int, float]]:
    """(bytes, pages, seconds) of each read of a decode worker."""
    found = []
    for span in named(spans, "transfer.pull"):
        told = span.get("attributes") or {}
        size, pages = told.get("baton.transfer.bytes_raw"), told.get("baton.transfer.pages")
        if span.get("service", "decode").endswith("decode") and size and pages:
            found.append((float(size), int(pages), seconds(span)))
    return found


def _token_bytes(pulls: Sequence[tuple[float, int, float]], block_tokens: int = 16) -> int:
    """Bytes of a token's KV, from whole pages."""
    if not pulls:
        return 1
    return max(1, round(sum(p[0] for p in pulls) / sum(p[1] for p in pulls) / block_tokens))


def _ways(rows: Sequence[Served], traces: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
    """Of each request's TTFT, what was neither waiting in line nor computing."""
    by_trace = {str(spans[0].get("trace_id", "")): spans for spans in traces if spans}
    found = []
    for row in rows:
        spans = by_trace.get(row.trace_id, ())
        busy = [seconds(s) for n in ("prefill.queue", "prefill.chunk") for s in named(spans, n)]
        if busy:
            found.append(max(0.0, row.ttft_s - sum(busy)))
    return found


def _off(seen: Sequence[_Seen], found: Sequence[float]) -> float:
    """Mean of |fit - observed| / observed."""
    shares = [
        abs(sum(c * x for c, x in zip(found, row, strict=True)) - wanted) / wanted
        for row, wanted in seen
        if wanted > 0
    ]
    return sum(shares) / len(shares) if shares else 0.0
