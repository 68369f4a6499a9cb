"""The event loop around the machine: feeds it and carries out what it wants.

Knows protocols only. Decides nothing: what fails out there comes back as an event.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from services.kvpool.core.actions import Action, Answer, PublishBlocks, Pull, Reply, Traced
from services.kvpool.core.events import (
    DrainBegun,
    Event,
    LookupArrived,
    OfferArrived,
    PeerLost,
    PullFailed,
    ReadEnded,
    ReleaseArrived,
    Ticked,
)
from services.kvpool.core.machine import PoolMachine
from services.kvpool.metrics import PoolMetrics
from services.kvpool.pulls import Puller
from shared.bus.bus import Delivery
from shared.errors import Code, RefusedError
from shared.ids import Generation, PageId
from shared.kv.invariants import InvariantError
from shared.runtime.membership import Membership
from shared.runtime.service import Scope
from shared.telemetry.jobs import hop
from shared.wire import subjects
from shared.wire.blocks import BlocksFound, LookupBlocks, OfferBlocks, ReleaseBlocks
from shared.wire.codec import Message
from shared.wire.workers import WorkerLost

_TICK_S: Final = 0.25
_PATIENCE_S: Final = 30.0
"""Of an offer that came without a deadline."""
_CALLS: Final = 1024
"""Requests answered at a time: waiting offers must not keep lookups out."""


@dataclass(frozen=True, slots=True)
class Call:
    """An open request on the bus."""

    reply: asyncio.Future[Answer]
    traceparent: str


class Shell:
    """Runs one machine between `serve` and the moment it is drained and at rest. Implements
    ReadGuard."""

    def __init__(
        self,
        scope: Scope,
        membership: Membership,
        machine: PoolMachine,
        puller: Puller,
        metrics: PoolMetrics,
    ) -> None:
        self.machine = machine
        self.draining = False
        self._scope = scope
        self._membership = membership
        self._puller = puller
        self._metrics = metrics
        self._subject = subjects.pool(membership.worker)
        self._calls: dict[int, Call] = {}
        self._last_call = 0
        self._broken: InvariantError | None = None

    @property
    def calls_open(self) -> int:
        return len(self._calls)

    async def serve(self) -> None:
        """Answer until drained. Raises what broke the machine, or BusError."""
        bus = self._scope.bus
        pool = await bus.subscribe(self._subject, self._answer, concurrency=_CALLS)
        lost = await bus.subscribe(subjects.LOST, self._hear_lost, concurrency=1)
        while not (self.draining and self.machine.at_rest):
            if self._broken is not None:
                raise self._broken
            self.feed(Ticked())
            self._metrics.show(self.machine)
            await asyncio.sleep(_TICK_S)
        await pool.close()
        await lost.close()

    def drain(self) -> None:
        """Take nothing new; `serve` returns when offers, leases and reads have ended."""
        self.draining = True
        self._membership.set_draining()
        self.feed(DrainBegun())

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        return self.machine.open_read(ticket, pages, self._scope.clock.now())

    def close_read(self, read: int) -> None:
        self.feed(ReadEnded(read))

    def feed(self, event: Event) -> None:
        """Run one event through the machine and begin what it asks for, without an await."""
        try:
            actions = self.machine.handle(event, self._scope.clock.now())
        except InvariantError as error:
            self._broken = error
            raise
        for action in actions:
            self._begin(action)

    def _begin(self, action: Action) -> None:
        match action:
            case Reply(number, message):
                if isinstance(message, BlocksFound):
                    self._metrics.lent(message)
                call = self._calls.get(number)
                if call is not None and not call.reply.done():
                    call.reply.set_result(message)
            case Pull():
                self._scope.tasks.create_task(self._pull(action), name=f"pull-{action.pull}")
            case PublishBlocks(events):
                self._metrics.published(events)
                self._membership.publish_blocks(events)
            case Traced():
                self._scope.tracer.record(
                    action.name,
                    self._traceparent(action.call),
                    action.start_s,
                    action.end_s,
                    {**action.attributes, **hop(self._subject, "process")},
                )
            case _:
                assert_never(action)

    async def _answer(self, delivery: Delivery) -> Message:
        """Hand one request to the machine and wait for its answer, which always comes: an offer
        lives no longer than its patience, everything else is answered at once."""
        self._last_call += 1
        number = self._last_call
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._calls[number] = Call(reply, delivery.headers.traceparent)
        try:
            self.feed(_event(number, delivery))
            return await reply
        finally:
            del self._calls[number]

    async def _hear_lost(self, delivery: Delivery) -> None:
        lost = delivery.message
        if isinstance(lost, WorkerLost) and self._membership.obeys(lost):
            self.feed(PeerLost(lost))
            await self._puller.forget(lost)

    async def _pull(self, wish: Pull) -> None:
        try:
            outcome = await self._puller.pull(wish, self._traceparent(wish.call))
        except Exception as error:  # noqa: BLE001 - one pull must not end the node, nor its pages return
            self._scope.log.failure("kvpool.pull_broke", error)
            outcome = PullFailed(wish.pull, settled=False, code=Code.INTERNAL)
        self.feed(outcome)

    def _traceparent(self, number: int) -> str:
        call = self._calls.get(number)
        return "" if call is None else call.traceparent


def _event(number: int, delivery: Delivery) -> Event:
    """The machine's view of a request. Raises RefusedError for what no pool node answers."""
    match delivery.message:
        case OfferBlocks() as offer:
            left_s = delivery.headers.deadline_s
            return OfferArrived(number, offer, _PATIENCE_S if left_s is None else left_s)
        case LookupBlocks() as lookup:
            return LookupArrived(number, lookup, secrets.token_hex(16))
        case ReleaseBlocks() as release:
            return ReleaseArrived(number, release)
        case _:
            raise RefusedError("not a message for a pool node", Code.INVALID_PARAMETER)
