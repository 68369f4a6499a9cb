"""The order to serve the other role: who may give it, who takes it, and what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.errors import BusError, Code
from shared.ids import Epoch, WorkerId
from shared.runtime.membership import Membership, NothingToReport, Traits
from shared.runtime.service import Scope
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.requests import Acknowledged, Refused
from shared.wire.workers import Heartbeat, Registered, RegisterWorker, SwitchRole
from tests.contracts.wires import until
from tests.shared.runtime.rig import make_scope

NAME = WorkerId("decode-0")
ORDER = SwitchRole(NAME, Epoch(7), Epoch(3), "prefill")


@dataclass
class Stage:
    """A decode worker that takes orders, and the scheduler that gives them."""

    broker: MemoryBroker
    scope: Scope
    scheduler: MemoryBus
    beats: list[Heartbeat]

    async def order(self, message: Message) -> Message:
        subject = subjects.switch("decode", NAME)
        return await self.scheduler.request(subject, message, Headers(), 5.0)


@asynccontextmanager
async def stage(*, orders: bool = True) -> AsyncIterator[Stage]:
    broker, beats = MemoryBroker(), list[Heartbeat]()
    scheduler = MemoryBus(broker, "scheduler-0", "scheduler")

    async def register(delivery: Delivery) -> Registered:
        assert isinstance(delivery.message, RegisterWorker)
        return Registered(NAME, Epoch(7), Epoch(3))

    async def hear(delivery: Delivery) -> None:
        assert isinstance(delivery.message, Heartbeat)
        beats.append(delivery.message)

    await scheduler.subscribe(subjects.REGISTRATIONS, register)
    await scheduler.subscribe(subjects.HEARTBEATS, hear)
    async with asyncio.TaskGroup() as tasks:
        scope = make_scope("decode", broker, tasks)
        membership = Membership(scope, Traits(), NothingToReport())
        speaking = tasks.create_task(membership.join(), name="join")
        await speaking
        if orders:
            await membership.take_orders("prefill")
        yield Stage(broker, scope, scheduler, beats)
        for task in asyncio.all_tasks():
            if task.get_name() == "membership":
                task.cancel()


async def test_the_leader_turns_a_worker_once() -> None:
    async with stage() as on:
        await until(lambda: any(beat.switchable for beat in on.beats))
        assert isinstance(await on.order(ORDER), Acknowledged)
        assert on.scope.turning.to == "prefill" and on.scope.turning.asked.is_set()
        assert isinstance(await on.order(ORDER), Acknowledged), "again: the same answer"
        await until(lambda: on.beats[-1].turning == "prefill")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"epoch": Epoch(6)}, Code.STALE),
        ({"epoch": Epoch(8)}, Code.STALE),
        ({"worker": WorkerId("decode-1")}, Code.STALE),
        ({"leader_epoch": Epoch(2)}, Code.STALE),
        ({"to": "decode"}, Code.INVALID_PARAMETER),
        ({"to": "gateway"}, Code.INVALID_PARAMETER),
        ({"to": ""}, Code.INVALID_PARAMETER),
    ],
)
async def test_an_order_for_someone_else_or_of_an_old_leader(
    change: dict[str, object], code: Code
) -> None:
    async with stage() as on:
        refusal = await on.order(replace(ORDER, **change))  # type: ignore[arg-type]
        assert isinstance(refusal, Refused) and refusal.code == code
        assert not on.scope.turning.asked.is_set()


async def test_a_worker_that_drains_already_refuses() -> None:
    async with stage() as on:
        on.scope.stopping.set()
        refusal = await on.order(ORDER)
        assert isinstance(refusal, Refused) and refusal.code == Code.DRAINING


async def test_another_message_on_that_subject_is_refused() -> None:
    async with stage() as on:
        forged = RegisterWorker(NAME, "decode", "x")
        refusal = await on.order(forged)
        assert isinstance(refusal, Refused) and refusal.code == Code.INVALID_PARAMETER


async def test_without_a_supervisor_for_it_there_is_nobody_to_order() -> None:
    async with stage(orders=False) as on:
        with pytest.raises(BusError):
            await on.order(ORDER)
        await until(lambda: len(on.beats) > 1)
        assert not any(beat.switchable for beat in on.beats)


@pytest.mark.parametrize("role", ["gateway", "prefill", "decode", "kvpool"])
async def test_no_other_credential_may_order(role: str) -> None:
    async with stage() as on:
        forger = MemoryBus(on.broker, f"{role}-9", role)
        with pytest.raises(BusError):
            await forger.request(subjects.switch("decode", NAME), ORDER, Headers(), 1.0)
        assert not on.scope.turning.asked.is_set()
