"""Epochs and leadership in a small key-value bucket, by compare-and-set.

The only durable facts of the control plane. Losing them costs work, never correctness: an epoch
is taken again and older incarnations are refused by everyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from shared.bus.bus import KeyValue
from shared.errors import BusError
from shared.ids import Epoch, WorkerId

_LEADER_KEY: Final = "leader"
_MAX_TRIES: Final = 16


@dataclass(frozen=True, slots=True)
class Holder:
    """Who took the newest epoch of a key."""

    epoch: Epoch
    incarnation: str


class EpochStore:
    """Takes epochs for worker ids and for the scheduler's leadership."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    async def take(self, worker: WorkerId, incarnation: str) -> Epoch:
        """The epoch of this incarnation: a new one, or the same again when it asks twice."""
        return await self._take(f"worker.{worker}", incarnation)

    async def lead(self, incarnation: str) -> Epoch:
        """Become the leader with an epoch above every earlier leader's."""
        return await self._take(_LEADER_KEY, incarnation)

    async def leader(self) -> Holder | None:
        """The newest leader on record."""
        found = await self._bucket.get(_LEADER_KEY)
        return None if found is None else _parse(found[0])

    async def _take(self, key: str, incarnation: str) -> Epoch:
        for _ in range(_MAX_TRIES):
            found = await self._bucket.get(key)
            holder, revision = (None, 0) if found is None else (_parse(found[0]), found[1])
            if holder is not None and holder.incarnation == incarnation:
                return holder.epoch
            epoch = Epoch(1 if holder is None else holder.epoch + 1)
            value = orjson.dumps({"epoch": epoch, "incarnation": incarnation})
            if await self._bucket.put_if(key, value, revision) is not None:
                return epoch
        raise BusError(f"could not take an epoch: {_MAX_TRIES} others were faster")


def _parse(value: bytes) -> Holder | None:
    """A damaged record reads as absent: the epoch restarts and the revision still fences."""
    try:
        fields = orjson.loads(value)
        return Holder(Epoch(int(fields["epoch"])), str(fields["incarnation"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
