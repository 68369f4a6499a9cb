"""The short way of a read: one call into C begins it, and one ends it.

Most reads are one run that fits a portion, on a link that works and has credit, with nobody before
them. `native/direct.h` takes these, and counts credit where `flow` does; it declines all others,
and what becomes of one that is refused, cut off or given up is decided where it is for any read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from shared.dataplane.flow import Portion, Turns
from shared.dataplane.link_parts import PlaneParts, Start, long_way
from shared.dataplane.transfer import Transfer
from shared.dataplane.ucx_channel import Channel

Landed = Callable[[tuple[Transfer, Portion], int], None]


def short_way(
    compiled: Any,
    channel: Channel,
    parts: PlaneParts,
    turns: Turns[Transfer],
    transfers: set[Transfer],
    landed: Landed,
) -> Start:
    """For a link that has moved pages. `transfers` holds what it began until that is over."""
    if compiled is None:
        return long_way
    start: Start = compiled.DirectReads(
        channel.posting(),
        channel.awake,
        channel,
        channel.posting,
        landed,
        parts.portions_of,
        partial(asyncio.Future, loop=asyncio.get_running_loop()),
        parts.deadlines,
        transfers,
        (turns.queues, turns.counts),
        (parts.budget.waiting, parts.budget.counts),
        parts.room,
    ).start
    return start
