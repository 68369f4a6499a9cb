"""Fits a live run: prompt chunks, decode steps, handoffs and the way to a worker, each from its
own observations; and how far each fit is off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadgen.calibration.beside import Busy, Factors, Shares, alone, factors
from loadgen.calibration.costs import Costs
from loadgen.calibration.least import fit
from loadgen.calibration.run_folder import RunError, Served, named, seconds, when

_FASTEST: Final = 1e12


@dataclass(frozen=True, slots=True)
class Learnt:
    """The costs, how many observations each fit had, and the mean share by which it is off."""

    costs: Costs
    observations: dict[str, int]
    off: dict[str, float]


def learn(
    run: str,
    rows: Sequence[Served],
    traces: Sequence[Sequence[Mapping[str, Any]]],
    kv_tokens: int,
) -> Learnt:
    """Raises RunError where a kind of observation is missing altogether."""
    chunks = _together([seen for spans in traces for seen in _chunks(spans)])
    if not chunks:
        raise RunError("no trace has a span prefill.chunk: nothing tells what a prompt costs")
    steps = _steps(rows, _generating(traces))
    if not steps:
        raise RunError("no answer has two tokens: nothing tells what a decode step costs")
    copies = [seen for spans in traces for seen in _copies(spans)]
    computing, decoding = (
        [when(span) for spans in traces for span in named(spans, name)]
        for name in ("prefill.chunk", "decode.generate")
    )
    copying = Busy.of(seen.span for seen in copies)
    for seen, others in ((chunks, decoding), (steps, computing), (copies, computing + decoding)):
        busy = Busy.of(others)
        for one in seen:
            one.shares = busy.share(*one.span), 0.0 if seen is copies else copying.share(*one.span)
    beside = factors(lambda found: _off(chunks, found) + _off(steps, found))
    prefill, decode = _fitted(chunks, beside), _fitted(steps, beside)
    handoffs = [seen for spans in traces for seen in _handoffs(spans)]
    setup_s, byte_s = 0.0, 1 / _FASTEST
    if handoffs:
        setup_s, byte_s = fit([(1.0, size) for size, _ in handoffs], [s for _, s in handoffs])
    copy_s = _fitted(copies, beside) if copies else _NOTHING
    ways = sorted(_ways(rows, traces))
    costs = Costs(
        name=run,
        step_s=prefill[0],
        token_s=prefill[1],
        pair_s=prefill[2],
        decode_step_s=decode[0],
        decode_token_s=decode[1],
        decode_sequence_s=decode[2],
        setup_s=setup_s,
        bytes_per_s=1 / max(byte_s, 1 / _FASTEST),
        front_s=ways[len(ways) // 2] if ways else 0.0,
        kv_token_bytes=_token_bytes([span for spans in traces for span in _pulls(spans)]),
        kv_tokens=kv_tokens,
        chunk_tokens=max(round(seen.columns[1]) for seen in chunks),
        beside=beside[0],
        copy_beside=beside[1],
        copy_setup_s=copy_s[0],
        copy_bytes_per_s=1 / max(copy_s[1], 1 / _FASTEST) if copies else 0.0,
    )
    observations = {"chunks": len(chunks), "answers": len(steps), "handoffs": len(handoffs)}
    off = {"prefill": _off(chunks, beside), "decode": _off(steps, beside)}
    return Learnt(costs, observations | {"ways": len(ways)}, off)


_Columns = tuple[float, float, float]
_NEVER: Final = (0, 0)
_NOTHING: Final = (0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Seen:
    """One observation."""

    columns: _Columns
    """(1, new tokens, pairs) of a chunk; (1, context, sequences) of an answer's steps; (1, bytes,
    0) of a copy."""
    seconds: float
    """Of the chunk, or the copy; of a token of the answer."""
    span: tuple[int, int] = _NEVER
    """When, in nanoseconds."""
    shares: Shares = (0.0, 0.0)
    """Of that time, while other steps were under way; while the pool copied."""


def _chunks(spans: Sequence[Mapping[str, Any]]) -> list[_Seen]:
    """Each prompt chunk."""
    found: list[_Seen] = []
    at = 0
    for span in sorted(named(spans, "prefill.chunk"), key=when):
        told = span.get("attributes") or {}
        new = int(told.get("baton.chunk.tokens") or 0)
        at = int(told.get("baton.chunk.start") or at or told.get("baton.chunk.reused_tokens") or 0)
        if new > 0:
            columns = (1.0, float(new), float((at + new) ** 2 - at**2))
            found.append(_Seen(columns, seconds(span), when(span)))
        at += new
    return found


def _together(chunks: Sequence[_Seen]) -> list[_Seen]:
    """Chunks of several prompts in one step of a worker have the same span, to the nanosecond: the
    step took that long for all of them."""
    steps: dict[tuple[int, int], _Seen] = {}
    for chunk in chunks:
        known = steps.get(chunk.span)
        if known is None:
            steps[chunk.span] = chunk
        else:
            _, new, pairs = known.columns
            known.columns = (1.0, new + chunk.columns[1], pairs + chunk.columns[2])
    return list(steps.values())


def _generating(traces: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, tuple[int, int]]:
    """When the answer of each trace was decoded, where another worker had computed the prompt:
    elsewhere the prompt is part of the span."""
    found = {}
    for spans in traces:
        if any(named(spans, "prefill.chunk")):
            for span in named(spans, "decode.generate"):
                found[str(span.get("trace_id", ""))] = when(span)
    return found


def _steps(rows: Sequence[Served], generating: Mapping[str, tuple[int, int]]) -> list[_Seen]:
    """A token of each answer: how many others decoded beside it, on average, is read from when each
    was decoded. That begins after the handoff, and where there is none with the first token."""
    spans = {}
    for row in rows:
        begin, end = generating.get(row.trace_id, _NEVER)
        spans[row.number] = row.last_s - (end - begin) / 1e9 if end else row.first_s, row.last_s
    found: list[_Seen] = []
    for row in rows:
        begin_s, end_s = spans[row.number]
        if row.output_tokens < 2 or end_s <= begin_s:
            continue
        beside = context = 0.0
        for other in rows:
            first_s, last_s = spans[other.number]
            share = (min(end_s, last_s) - max(begin_s, first_s)) / (end_s - begin_s)
            if share > 0:
                beside += share
                context += share * (other.prompt_tokens + other.output_tokens / 2)
        token_s = (end_s - begin_s) / (row.output_tokens - 1)
        decoded = generating.get(row.trace_id, _NEVER)
        found.append(_Seen((1.0, context, beside), token_s, decoded))
    return found


def _handoffs(spans: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, float]]:
    """(bytes, seconds) from the end of a prompt's last chunk until its pages are there and checked:
    what decoding waits for. Earlier chunks' pages move while the next chunk is computed."""
    computed = [when(span)[1] for span in named(spans, "prefill.chunk")]
    there = [when(span)[1] for span in named(spans, "decode.verify")]
    pulls = sorted(_pulls(spans), key=when)
    if computed and there and pulls and max(there) > max(computed):
        told = pulls[-1]["attributes"]
        yield float(told["baton.transfer.bytes_raw"]), (max(there) - max(computed)) / 1e9


def _copies(spans: Sequence[Mapping[str, Any]]) -> Iterator[_Seen]:
    """Each read of a pool node."""
    for span in _pulls(spans, "kvpool"):
        size = float(span["attributes"]["baton.transfer.bytes_raw"])
        yield _Seen((1.0, size, 0.0), seconds(span), when(span))


def _pulls(spans: Sequence[Mapping[str, Any]], reader: str = "decode") -> list[Mapping[str, Any]]:
    """Reads of such a worker that tell how much they brought."""
    found = []
    for span in named(spans, "transfer.pull"):
        told = span.get("attributes") or {}
        whole = told.get("baton.transfer.bytes_raw") and told.get("baton.transfer.pages")
        if whole and span.get("service", "decode").endswith(reader):
            found.append(span)
    return found


def _token_bytes(pulls: Sequence[Mapping[str, Any]], block_tokens: int = 16) -> int:
    """Bytes of a token's KV, from whole pages."""
    if not pulls:
        return 1
    size, pages = (
        sum(int(span["attributes"][f"baton.transfer.{name}"]) for span in pulls)
        for name in ("bytes_raw", "pages")
    )
    return max(1, round(size / pages / block_tokens))


def _ways(rows: Sequence[Served], traces: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
    """Of each request's TTFT, what was neither before its prompt in line nor computing: all but the
    time from its arrival at a prefill worker to the end of its last chunk. Of requests that came
    alone, if there are any: several at once are in each other's way."""
    by_trace = {str(spans[0].get("trace_id", "")): spans for spans in traces if spans}
    at_once = Counter(row.intended_s for row in rows)
    found = []
    for row in [row for row in rows if at_once[row.intended_s] == 1] or rows:
        spans = by_trace.get(row.trace_id, ())
        there = [when(s) for n in ("prefill.queue", "prefill.chunk") for s in named(spans, n)]
        if there:
            begin, end = min(span[0] for span in there), max(span[1] for span in there)
            found.append(max(0.0, row.ttft_s - (end - begin) / 1e9))
    return found


def _fitted(seen: Sequence[_Seen], beside: Factors) -> tuple[float, ...]:
    """Coefficients of work without company."""
    wanted = [alone(one.seconds, one.shares, beside) for one in seen]
    return fit([one.columns for one in seen], wanted)


def _off(seen: Sequence[_Seen], beside: Factors) -> float:
    """Mean of |fit - observed| / observed, with the company that each had."""
    found = _fitted(seen, beside)
    shares = []
    for one in seen:
        wanted = alone(one.seconds, one.shares, beside)
        if wanted > 0:
            told = sum(c * x for c, x in zip(found, one.columns, strict=True))
            shares.append(abs(told - wanted) / wanted)
    return sum(shares) / len(shares) if shares else 0.0
