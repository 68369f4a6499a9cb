"""Heartbeats as they can be: what no worker can mean is cut to the nearest that one can.

A worker that lies within these bounds is met by what its requests then take (`trust.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from shared.wire.workers import MOST_READING, Heartbeat, Reading, WorkerLoad

LONGEST_WORK_S: Final = 3600.0
MOST_PAGES: Final = 1 << 26
MOST_SEQUENCES: Final = 1 << 16
MOST_STEP_TOKENS: Final = 1 << 20
BLOCK_TOKENS: Final = range(1, 1025)


def plausible(beat: Heartbeat) -> Heartbeat | None:
    """The same heartbeat when all of it makes sense, a cut one otherwise; None when its blocks
    have no possible size, so that nothing it says about tokens or pages means anything."""
    if beat.block_tokens not in BLOCK_TOKENS and beat.role != "gateway":
        return None
    load = beat.load
    total = min(max(0, load.pages_total), MOST_PAGES)
    work_s = load.work_left_s if math.isfinite(load.work_left_s) else LONGEST_WORK_S
    cut = WorkerLoad(
        queued_requests=min(max(0, load.queued_requests), MOST_SEQUENCES),
        queued_tokens=max(0, load.queued_tokens),
        running_sequences=min(max(0, load.running_sequences), MOST_SEQUENCES),
        work_left_s=min(max(0.0, work_s), LONGEST_WORK_S),
        pages_total=total,
        pages_free=min(max(0, load.pages_free), total),
        placement_sequence=max(0, load.placement_sequence),
        step_tokens=min(max(0, load.step_tokens), MOST_STEP_TOKENS),
        reading=tuple(
            Reading(one.peer, min(max(0, one.pages), MOST_PAGES))
            for one in load.reading[:MOST_READING]
        ),
    )
    if cut == load and beat.page_bytes >= 0:
        return beat
    return replace(beat, load=cut, page_bytes=max(0, beat.page_bytes))
