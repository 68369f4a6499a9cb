"""From a log to a workload and a fleet: who asked for what and when, and who served it.

With both, the simulator answers what another policy would have done to the clients' latencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.replay.again import LogError, entries
from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.prices import DecodePrice, Price
from loadgen.workloads.request import Request, Workload, build
from services.scheduler.core.events import Answer
from shared.wire.requests import PlacementEnded, PlaceRequest
from shared.wire.workers import Heartbeat

_BYTES_PER_S = 12.5e9
"""Where no report tells: a card of 100 Gbit/s."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a log tells about its world."""

    workload: Workload
    design: Design


def read(path: Path) -> Recorded:
    """First attempts only. Raises LogError, WorkloadError, DesignError."""
    asked: dict[str, tuple[float, PlaceRequest]] = {}
    emitted: Counter[str] = Counter()
    beats: dict[str, Heartbeat] = {}
    for _, _, entry in entries(path):
        match entry.event:
            case PlaceRequest(attempt=1) as ask if _placed(entry.actions):
                asked.setdefault(ask.request, (entry.at_s, ask))
            case PlacementEnded(request=request, emitted=count):
                emitted[request] += count
            case Heartbeat() as beat:
                beats[beat.worker] = beat
            case _:
                pass
    if not asked:
        raise LogError(f"{path}: no request was placed")
    size = max((b.block_tokens for b in beats.values() if b.role == "decode"), default=0)
    if not size:
        raise LogError(f"{path}: no decode worker was heard")
    return Recorded(_workload(path.stem, asked, emitted, size), _design(path, beats, size))


def _placed(actions: tuple[tuple[str, Mapping[str, Any]], ...]) -> bool:
    return any(name == Answer.__name__ and "decode" in told["reply"] for name, told in actions)


def _workload(
    name: str, asked: Mapping[str, tuple[float, PlaceRequest]], emitted: Counter[str], size: int
) -> Workload:
    ids: dict[str, int] = {}
    first_s = min(at_s for at_s, _ in asked.values())
    rows = []
    for at_s, ask in sorted(asked.values(), key=lambda pair: pair[0]):
        blocks = [ids.setdefault(block, len(ids)) for block in ask.block_hashes]
        # A prompt's last, partial block has no name: nobody shares it.
        for _ in range(-(-ask.prompt_tokens // size) - len(blocks)):
            blocks.append(ids.setdefault(f"{ask.request} {len(blocks)}", len(ids)))
        rows.append(
            Request(
                at_s=at_s - first_s,
                prompt_tokens=ask.prompt_tokens,
                # Nobody tells how much came of a request that is still open: its limit then.
                output_tokens=max(1, emitted[ask.request] or ask.max_tokens),
                blocks=tuple(blocks),
                priority=ask.priority,
            )
        )
    return build(name, size, rows)


def _design(path: Path, beats: Mapping[str, Heartbeat], size: int) -> Design:
    roles = {
        role: [b for b in beats.values() if b.role == role]
        for role in ("prefill", "decode", "kvpool")
    }
    decode = roles["decode"][0]
    prefill = roles["prefill"][0] if roles["prefill"] else decode
    return Design(
        prefills=len(roles["prefill"]),
        decodes=len(roles["decode"]),
        prefill=_price(prefill, size),
        decode=_price(decode, size),
        link=Link(bytes_per_s=_BYTES_PER_S),
        block_tokens=size,
        chunk_tokens=max(2_048, size),
        route="auto" if roles["prefill"] else "colocated",
        kvpools=len(roles["kvpool"]),
        kvpool_tokens=sum(b.load.pages_total for b in roles["kvpool"]) * size,
    )


def _price(beat: Heartbeat, size: int) -> Price:
    cost = beat.cost
    alpha_s = max(0.0, cost.decode_step_s - cost.decode_sequence_s)
    return Price(
        name=beat.worker,
        step_s=cost.step_s,
        token_s=cost.token_s,
        pair_s=cost.pair_s,
        decode=DecodePrice(alpha_s, 0.0, cost.decode_sequence_s),
        kv_token_bytes=max(1, beat.page_bytes // size),
        kv_tokens=beat.load.pages_total * size,
    )
