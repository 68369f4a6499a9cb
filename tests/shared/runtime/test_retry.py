"""Sending until acknowledged: bounded, growing, and stopped when nobody wants it any more."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker, Weather
from shared.clock import SystemClock
from shared.errors import BusTimeout, Code, NoResponder, RefusedError
from shared.ids import Attempt, RequestId
from shared.runtime.retry import Backoff, Sender
from shared.wire.requests import Acknowledged, CancelRequest, Refused

SUBJECT = "baton.decode.d0.pages"
MESSAGE = CancelRequest(RequestId("r1"), Attempt(1), "test")
QUICK = Backoff(first_s=0.005, limit_s=0.02)


def _sender(broker: MemoryBroker) -> Sender:
    bus = MemoryBus(broker, "prefill-0")
    return Sender(bus, SystemClock(), random.Random(1), QUICK, attempt_s=0.02)


async def test_it_repeats_through_bad_weather_until_an_answer_comes() -> None:
    broker = MemoryBroker(random.Random(3), Weather(drop=0.7))
    got: list[float | None] = []

    async def take(delivery: Delivery) -> Acknowledged:
        got.append(delivery.headers.deadline_s)
        return Acknowledged()

    await MemoryBus(broker, "decode-0").subscribe(SUBJECT, take)
    assert await _sender(broker).send(SUBJECT, MESSAGE, Headers(), 10.0) == Acknowledged()
    assert broker.fired["drop"] > 0
    left = [deadline for deadline in got if deadline is not None]
    assert all(deadline <= 10.0 for deadline in left)


async def test_a_refusal_is_an_answer(memory_broker: MemoryBroker) -> None:
    async def refuse(delivery: Delivery) -> None:
        raise RefusedError("ended", Code.STALE)

    await MemoryBus(memory_broker, "decode-0").subscribe(SUBJECT, refuse)
    reply = await _sender(memory_broker).send(SUBJECT, MESSAGE, Headers(), 1.0)
    assert reply == Refused("stale", "ended")


async def test_it_gives_up_at_the_deadline_with_the_last_error(
    memory_broker: MemoryBroker,
) -> None:
    async with asyncio.timeout(1.0):
        with pytest.raises(NoResponder):
            await _sender(memory_broker).send(SUBJECT, MESSAGE, Headers(), 0.1)


async def test_it_waits_out_an_outage(memory_broker: MemoryBroker) -> None:
    async def take(delivery: Delivery) -> Acknowledged:
        return Acknowledged()

    await MemoryBus(memory_broker, "decode-0").subscribe(SUBJECT, take)
    sender = _sender(memory_broker)
    memory_broker.outage()
    asyncio.get_running_loop().call_later(0.05, memory_broker.restore)
    assert await sender.send(SUBJECT, MESSAGE, Headers(), 5.0) == Acknowledged()


async def test_it_stops_when_nobody_wants_it(memory_broker: MemoryBroker) -> None:
    left = itertools.count(3, -1)
    async with asyncio.timeout(1.0):
        with pytest.raises(NoResponder):
            await _sender(memory_broker).send(
                SUBJECT, MESSAGE, Headers(), 60.0, wanted=lambda: next(left) > 0
            )


async def test_no_time_is_a_timeout(memory_broker: MemoryBroker) -> None:
    with pytest.raises(BusTimeout):
        await _sender(memory_broker).send(SUBJECT, MESSAGE, Headers(), 0.0)


def test_pauses_grow_to_a_limit_and_are_spread() -> None:
    backoff = Backoff(first_s=0.1, factor=2.0, limit_s=1.0, jitter=0.5)
    pauses = list(itertools.islice(backoff.pauses(random.Random(3)), 200))
    assert all(0.05 <= pause <= 1.0 for pause in pauses)
    assert pauses[0] <= 0.1
    assert max(pauses[4:]) > 0.9
    assert min(pauses[4:]) < 0.6
    assert pauses[:9] == list(itertools.islice(backoff.pauses(random.Random(3)), 9))
