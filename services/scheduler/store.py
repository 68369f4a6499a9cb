"""Epochs and the leader's lease in a small key-value bucket, by compare-and-set.

The only durable facts of the control plane. Losing them costs work, never correctness: an epoch
is taken again and older incarnations are refused by everyone.
"""

from __future__ import annotations

from typing import Final

import orjson

from services.scheduler.core.leadership import Claim
from shared.bus.bus import KeyValue
from shared.errors import BusError, Code, RefusedError
from shared.ids import Epoch, WorkerId

_LEADER_KEY: Final = "leader"
_MAX_TRIES: Final = 16
_REMEMBERED: Final = 16
"""Earlier incarnations of a worker id."""


class EpochStore:
    """Takes epochs for worker ids, reads and writes the lease of the lead."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    async def take(self, worker: WorkerId, incarnation: str, above: Epoch = Epoch(0)) -> Epoch:  # noqa: B008 - an int
        """The epoch of this incarnation: a new one, or the same again when it asks twice. It is
        higher than `above` too, should the bucket have forgotten what was taken before. Raises
        RefusedError when this incarnation was replaced: a late copy of its question must not put
        out the one that lives."""
        key = f"worker.{worker}"
        for _ in range(_MAX_TRIES):
            found = await self._bucket.get(key)
            holder, revision = (None, 0) if found is None else (_parse(found[0]), found[1])
            if holder is not None and holder.incarnation == incarnation:
                return holder.epoch
            past = () if found is None else _parse_past(found[0])
            if incarnation in past:
                raise RefusedError("a newer process has taken this name", Code.STALE)
            if holder is not None:
                past = (*past, holder.incarnation)[-_REMEMBERED:]
            last = 0 if holder is None else holder.epoch
            claim = Claim(Epoch(max(last, above) + 1), incarnation, worker)
            if await self._bucket.put_if(key, _encode(claim, past), revision) is not None:
                return claim.epoch
        raise BusError(f"could not take an epoch: {_MAX_TRIES} others were faster")

    async def read_lead(self) -> tuple[Claim | None, int]:
        """The lease of the lead and its revision (0: nobody has ever led)."""
        found = await self._bucket.get(_LEADER_KEY)
        return (None, 0) if found is None else (_parse(found[0]), found[1])

    async def write_lead(self, claim: Claim, revision: int) -> int | None:
        """Its new revision, or None when somebody else was faster."""
        return await self._bucket.put_if(_LEADER_KEY, _encode(claim), revision)


def _encode(claim: Claim, past: tuple[str, ...] = ()) -> bytes:
    """`past`: incarnations that held it before."""
    fields = {"epoch": claim.epoch, "incarnation": claim.incarnation, "worker": claim.worker}
    return orjson.dumps({**fields, "past": past} if past else fields)


def _parse_past(value: bytes) -> tuple[str, ...]:
    try:
        return tuple(str(entry) for entry in orjson.loads(value).get("past", ()))
    except (orjson.JSONDecodeError, AttributeError, TypeError):
        return ()


def _parse(value: bytes) -> Claim | None:
    """A damaged record reads as absent: the epoch restarts and the revision still fences."""
    try:
        fields = orjson.loads(value)
        worker = WorkerId(str(fields["worker"]))
        return Claim(Epoch(int(fields["epoch"])), str(fields["incarnation"]), worker)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
