"""Whether the traces of requests are whole: one root each, no span in the air, every job told of,
also where the process that took the job was killed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from typing import Any, Final

from services.gateway.lost_spans import LOST
from tests.e2e.cluster import TestCluster

_PATIENCE_S: Final = 15.0
_POLL_S: Final = 0.25
_SERVER: Final = 2


async def until_whole(
    cluster: TestCluster, traces: Collection[str], killed: Collection[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Spans of each trace. AssertionError says what is wrong with which one. Spans may be missing
    for good only of jobs of workers that were `killed`."""
    give_up_s = time.monotonic() + _PATIENCE_S
    while True:
        found = {name: await _spans(cluster, name) for name in traces}
        wrong = {name: said for name, spans in found.items() if (said := _flaws(spans, killed))}
        if not wrong:
            return found
        assert time.monotonic() < give_up_s, wrong
        await asyncio.sleep(_POLL_S)


async def _spans(cluster: TestCluster, name: str) -> list[dict[str, Any]]:
    async with cluster.http.get(f"{cluster.admin_url}/admin/traces/{name}") as answer:
        if answer.status != 200:
            return []
        spans: list[dict[str, Any]] = json.loads(await answer.read())["spans"]
        return spans


def _flaws(spans: list[dict[str, Any]], killed: Collection[str]) -> list[str]:
    """What is not as it should be."""
    roots = [span for span in spans if span["kind"] == _SERVER and span["service"] == "gateway"]
    if len(roots) != 1:
        return [f"{len(roots)} roots among {len(spans)} spans"]
    known = {span["span_id"] for span in spans}
    found = [] if len(known) == len(spans) else ["two spans have one id"]
    found += [
        f"{span['name']} hangs in the air"
        for span in spans
        if span is not roots[0] and span["parent_id"] not in known
    ]
    found += [
        f"{span['name']} of {span['worker']} is lost, but its process was not killed"
        for span in spans
        if LOST in span["attributes"] and (span["worker"] or "anybody") not in {*killed, "anybody"}
    ]
    found += [
        f"{span['name']} of {span['worker']} ends before it began"
        for span in spans
        if span["end_ns"] < span["start_ns"] or not span["end_ns"]
    ]
    if not killed and any(LOST in span["attributes"] for span in spans):
        found.append("spans are lost, but nobody was killed")
    return found + _untold_jobs(spans)


def _untold_jobs(spans: list[dict[str, Any]]) -> list[str]:
    """Every job that a worker accepted has its span, with the same attempt."""
    told = {
        (span["name"], span["worker"], span["attributes"]["baton.attempt"])
        for span in spans
        if span["name"] in ("prefill.job", "decode.job")
    }
    sent = {
        (f"{said['baton.role']}.job", said["baton.worker"], said["baton.attempt"])
        for span in spans
        if span["name"] == "gateway.send"
        and (said := span["attributes"])["baton.answer"] == "accepted"
    }
    return [f"{job} was accepted and never told of" for job in sorted(sent - told)]
