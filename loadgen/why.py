"""`python -m loadgen why <request id>`: why it ran where it ran, in a sentence and a table.

Reads the trace store; asks no scheduler, which may have forgotten.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import orjson

from loadgen.trace import fetch

_SPAN: Final = "scheduler.place"
_PLACE: Final = "baton.place."
_SAID: Final = ("pair", "note", "lost", "score_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("id", help="request id or trace id, as in x-baton-trace-id")
    parser.add_argument("--admin-url", default="http://127.0.0.1:8001")
    parser.add_argument("--json", action="store_true", help="print what the table is made of")


async def main(options: argparse.Namespace) -> int:
    """Print the explanation of each attempt; exit 1 when there is none."""
    try:
        spans = await fetch(options.admin_url, options.id)
    except aiohttp.ClientError as error:
        print(f"loadgen: {options.admin_url} does not answer: {error}", file=sys.stderr)
        return 1
    placed = placements(spans)
    if not placed:
        print("loadgen: no placement in that trace (yet)", file=sys.stderr)
        return 1
    if options.json:
        print(orjson.dumps(placed, option=orjson.OPT_INDENT_2).decode())
    else:
        print("\n\n".join(explain(span) for span in placed))
    return 0


def placements(spans: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The scheduler's spans of a trace, oldest first."""
    return sorted(
        (span for span in spans if span["name"] == _SPAN), key=lambda span: span["start_ns"]
    )


def explain(span: Mapping[str, Any]) -> str:
    """One attempt: the sentence, then a table of all candidates with every term in ms."""
    given = span.get("attributes", {})
    rows = [event.get("attributes", {}) for event in span.get("events", [])]
    candidates = [row for row in rows if "pair" in row]
    lines = [sentence(given, candidates)]
    if candidates:
        lines += ["", *table(candidates, in_seconds=given.get(f"{_PLACE}policy") == "baton")]
    return "\n".join(lines)


def sentence(given: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]]) -> str:
    """What was decided and for which reason."""
    request = f"Request {given.get('baton.request.id', '?')}"
    if given.get("baton.attempt", 1) != 1:
        request += f", attempt {given['baton.attempt']},"
    refused = given.get(f"{_PLACE}refused")
    if refused:
        return f"{request} was not placed: {refused}."
    chosen = next((row["pair"] for row in candidates if not row.get("lost")), None)
    where = chosen or given.get(f"{_PLACE}winner", "?")
    estimate_ms = 1e3 * float(given.get(f"{_PLACE}estimate_ttft_s", 0.0))
    text = (
        f"{request} ran {given.get(f'{_PLACE}route', '?')} on {where}, chosen by "
        f"{given.get(f'{_PLACE}policy', '?')}: {given.get(f'{_PLACE}route_reason', '?')}. "
        f"A first token was expected after {estimate_ms:.1f} ms"
    )
    fetched = given.get(f"{_PLACE}fetch_blocks", 0)
    if fetched:
        text += f", with {fetched} blocks copied from {given.get(f'{_PLACE}fetch_from', '?')}"
    second = given.get(f"{_PLACE}runner_up")
    if second:
        margin = float(given.get(f"{_PLACE}margin", 0.0))
        ours = given.get(f"{_PLACE}policy") == "baton"
        text += f". Next was {second}, {f'{1e3 * margin:+.1f} ms' if ours else f'{margin:+.4g}'}"
    return text + "."


def table(candidates: Sequence[Mapping[str, Any]], *, in_seconds: bool) -> list[str]:
    """Chosen one first; columns are the terms that any candidate has."""
    ordered = sorted(candidates, key=lambda row: (bool(row.get("lost")), row["score_s"]))
    terms = sorted({name for row in ordered for name in row if name not in _SAID})
    shown = [name for name in terms if any(float(row.get(name, 0.0)) for row in ordered)]
    unit = "score ms" if in_seconds else "score"
    scale = 1e3 if in_seconds else 1.0
    header = ["", "pair", unit, *(f"{name.removesuffix('_s')} ms" for name in shown), "why not"]
    body = [
        [
            "*" if not row.get("lost") else "",
            str(row["pair"]),
            f"{scale * float(row['score_s']):.1f}",
            *(f"{1e3 * float(row.get(name, 0.0)):.1f}" for name in shown),
            str(row.get("lost") or row.get("note", "")),
        ]
        for row in ordered
    ]
    widths = [max(len(line[place]) for line in [header, *body]) for place in range(len(header))]
    return [
        "  ".join(
            text.ljust(width) if place < 2 or place == len(header) - 1 else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [header, *body]
    ]
