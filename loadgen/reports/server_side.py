"""What a Baton says about itself around a run: prompt tokens by tier, parts of the first token's
time, bytes moved, work of each worker. Absent for other servers; then the report says so.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loadgen.load import target

PARTS: Final = (
    "receive", "parse", "render", "admit", "retried", "place", "reserve", "bus_out",
    "prefill_queue", "fetch", "compute", "sample", "bus_back", "emit",
)  # fmt: skip
_LOOK_S: Final = 2.0
_MOST_LOOKS: Final = 2_000
_MOST_SPLITS: Final = 60
_SPLITS_S: Final = 6.0
_SAMPLE: Final = re.compile(r"(baton_[a-z0-9_]+)(?:\{([^}]*)\})? ([-+0-9.eE]+|NaN)")
_LABEL: Final = re.compile(r'([a-z_]+)="([^"]*)"')

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class ServerSide:
    """Looks at the start, now and then, and at the end."""

    admin_url: str
    looks: list[dict[str, Any]] = field(default_factory=list)
    _before: dict[Key, float] = field(default_factory=dict)
    _moved_before: dict[tuple[str, str], float] = field(default_factory=dict)
    _topology: list[dict[str, Any]] = field(default_factory=list)
    _watching: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Nothing is asked of a server without a port for operators."""
        if not self.admin_url:
            return
        self._before = read_metrics(await target.text(self.admin_url, "/metrics"))
        cluster = await target.ask(self.admin_url, "/admin/cluster") or {}
        self._topology = [
            {name: worker.get(name) for name in ("worker", "role", "epoch", "state")}
            for worker in _workers(cluster)
        ]
        self._moved_before = _moved(cluster)
        self._watching = asyncio.create_task(self._watch(), name="watch-workers")

    async def end(self) -> dict[str, Any]:
        """Differences over the run, as plain values; empty for a server that tells nothing."""
        if self._watching is None:
            return {}
        self._watching.cancel()
        after = read_metrics(await target.text(self.admin_url, "/metrics"))
        cluster = await target.ask(self.admin_url, "/admin/cluster") or {}
        change = {key: value - self._before.get(key, 0.0) for key, value in after.items()}
        moved = _moved(cluster)
        return {
            "topology": self._topology,
            "prompt_tokens_by_source": _by_label(change, "baton_prompt_tokens_total", "source"),
            "bytes_moved": {
                f"{worker} {transport}".strip(): value
                - self._moved_before.get((worker, transport), 0.0)
                for (worker, transport), value in moved.items()
            },
            "attempts": _by_label(change, "baton_attempts_total", "cause"),
            "refusals": _by_label(change, "baton_refusals_total", "reason"),
            "workers": self.looks,
        }

    async def splits(self, trace_ids: Sequence[str]) -> dict[str, Any]:
        """Mean parts of the first token's time, over the traces of these requests that are in the
        store by now: so many, and milliseconds by part. Takes a few seconds at most."""
        if not self.admin_url:
            return {}
        taken = thinned(trace_ids)
        found: dict[str, dict[str, float]] = {}
        limit_s = asyncio.get_running_loop().time() + _SPLITS_S
        while len(found) < len(taken) and asyncio.get_running_loop().time() < limit_s:
            for trace_id in (one for one in taken if one not in found):
                shown = await target.ask(self.admin_url, f"/admin/traces/{trace_id}")
                if shown is not None and (parts := _split_of(shown)):
                    found[trace_id] = parts
            # Spans come in batches.
            await asyncio.sleep(0.5)
        sums = {part: sum(one.get(part, 0.0) for one in found.values()) for part in PARTS}
        many = len(found)
        means = {part: round(total / many, 4) for part, total in sums.items()} if many else {}
        return {"traces": many, "mean_ms": means}

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while len(self.looks) < _MOST_LOOKS:
            cluster = await target.ask(self.admin_url, "/admin/cluster")
            if cluster is not None:
                at_s = round(loop.time() - began_s, 2)
                self.looks.append({"at_s": at_s, "workers": _loads(cluster)})
            await asyncio.sleep(_LOOK_S)


def read_metrics(text: str) -> dict[Key, float]:
    """Samples of Prometheus' text format; lines that are none are skipped."""
    found: dict[Key, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match:
            labels = tuple(sorted(_LABEL.findall(match.group(2) or "")))
            found[match.group(1), labels] = float(match.group(3))
    return found


def _by_label(change: Mapping[Key, float], name: str, label: str) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for (metric, labels), value in change.items():
        if metric == name and value:
            found[dict(labels).get(label, "")] += value
    return dict(found)


def thinned(trace_ids: Sequence[str]) -> list[str]:
    """A sample, evenly over the run."""
    step = max(1, len(trace_ids) // _MOST_SPLITS)
    return [one for one in trace_ids[::step] if one.isalnum()][:_MOST_SPLITS]


def _split_of(shown: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds by part, of one trace; empty when it tells none."""
    split = shown.get("split")
    parts = split.get("parts") if isinstance(split, dict) else None
    if not isinstance(parts, list):
        return {}
    return {str(name): float(nanoseconds) / 1e6 for name, nanoseconds in parts}


def _workers(cluster: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    workers = cluster.get("workers")
    return [one for one in workers if isinstance(one, dict)] if isinstance(workers, list) else []


def _moved(cluster: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Bytes that each worker has pulled, by transport."""
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for worker in _workers(cluster):
        for sample in worker.get("figures") or ():
            if sample.get("name") == "baton_transfer_bytes_total":
                labels = dict(sample.get("labels") or {})
                if labels.get("form", "raw") == "raw":
                    where = str(worker.get("worker")), str(labels.get("transport", ""))
                    found[where] += float(sample.get("value", 0.0))
    return dict(found)


def _loads(cluster: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Requests queued and running, and pages in use, of each worker."""
    found = {}
    for worker in _workers(cluster):
        load = worker.get("load")
        if isinstance(load, dict):
            total = float(load.get("pages_total") or 0)
            free = float(load.get("pages_free") or 0)
            found[str(worker.get("worker"))] = {
                "queued": float(load.get("queued_requests") or 0),
                "running": float(load.get("running_sequences") or 0),
                "pages": round(1 - free / total, 4) if total else 0.0,
            }
    return found
