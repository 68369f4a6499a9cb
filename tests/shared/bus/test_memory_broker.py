"""The memory bus can be as nasty as asked, and the same seed is nasty in the same way."""

from __future__ import annotations

import asyncio
import random

import pytest

from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker, Weather, matches
from shared.errors import BusError, BusTimeout, BusUnavailable
from shared.ids import Attempt, RequestId
from shared.wire.requests import Acknowledged, ResendTokens

JOB, OTHER = "baton.decode.d0.job", "baton.decode.d1.job"
PLAIN = Headers()


def _message(index: int) -> ResendTokens:
    return ResendTokens(RequestId("r1"), Attempt(1), index)


class Ear:
    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    async def __call__(self, delivery: Delivery) -> Acknowledged:
        assert isinstance(delivery.message, ResendTokens)
        self.heard.append((delivery.subject, delivery.message.index))
        return Acknowledged()


async def _history(seed: int, weather: Weather) -> tuple[list[tuple[str, int]], MemoryBroker]:
    broker = MemoryBroker(random.Random(seed), weather)
    speaker, listener, ear = MemoryBus(broker, "a"), MemoryBus(broker, "b"), Ear()
    await listener.subscribe("baton.decode.*.job", ear)
    for index in range(200):
        await speaker.publish(JOB if index % 2 else OTHER, _message(index), PLAIN)
    await asyncio.sleep(weather.delay_s + 0.02)
    return ear.heard, broker


async def test_bad_weather_drops_repeats_and_reorders_across_subjects_only() -> None:
    heard, broker = await _history(7, Weather(drop=0.2, duplicate=0.2, delay_s=0.03))
    assert broker.fired["drop"] > 10
    assert broker.fired["duplicate"] > 10
    assert broker.fired["delay"] > 100
    indices = [index for _, index in heard]
    assert indices != sorted(indices)
    for subject in (JOB, OTHER):
        lane = [index for place, index in heard if place == subject]
        assert lane == sorted(lane)


async def test_the_same_seed_loses_and_repeats_the_same_messages() -> None:
    weather = Weather(drop=0.3, duplicate=0.3)
    first, _ = await _history(3, weather)
    again, _ = await _history(3, weather)
    other, _ = await _history(4, weather)
    assert first == again != other


async def test_a_cut_is_one_way() -> None:
    broker, ear = MemoryBroker(), Ear()
    a, b = MemoryBus(broker, "a"), MemoryBus(broker, "b")
    await b.subscribe(JOB, ear)
    broker.cut("b", "a")
    with pytest.raises(BusTimeout):
        await a.request(JOB, _message(1), PLAIN, 0.5)
    assert ear.heard == [(JOB, 1)]
    broker.cut("a", "b")
    with pytest.raises(BusTimeout):
        await a.request(JOB, _message(2), PLAIN, 0.05)
    assert ear.heard == [(JOB, 1)]
    broker.heal()
    assert await a.request(JOB, _message(3), PLAIN, 1.0) == Acknowledged()


async def test_an_outage_loses_what_was_under_way() -> None:
    broker, ear = MemoryBroker(weather=Weather(delay_s=0.01)), Ear()
    a, b = MemoryBus(broker, "a"), MemoryBus(broker, "b")
    await b.subscribe(JOB, ear)
    await a.publish(JOB, _message(1), PLAIN)
    broker.outage()
    broker.restore()
    await a.publish(JOB, _message(2), PLAIN)
    await asyncio.sleep(0.03)
    assert ear.heard == [(JOB, 2)]


async def test_a_client_that_vanished_neither_hears_nor_speaks() -> None:
    broker, go_on, spoke = MemoryBroker(), asyncio.Event(), asyncio.Event()
    a, b = MemoryBus(broker, "a"), MemoryBus(broker, "b")

    async def dying(delivery: Delivery) -> None:
        await go_on.wait()
        with pytest.raises(BusUnavailable):
            await b.publish(OTHER, _message(1), PLAIN)
        spoke.set()

    await b.subscribe(JOB, dying)
    asked = asyncio.create_task(a.request(JOB, _message(1), PLAIN, 0.05))
    await asyncio.sleep(0.01)
    b.vanish()
    go_on.set()
    await spoke.wait()
    with pytest.raises(BusTimeout):
        await asked
    with pytest.raises(BusError):
        await a.request(JOB, _message(2), PLAIN, 0.05)


async def test_a_bucket_may_lose_what_it_acknowledged() -> None:
    broker = MemoryBroker()
    bucket = await MemoryBus(broker, "a").key_value("baton-epochs")
    assert await bucket.put_if("k", b"1", 0) == 1
    assert await bucket.put_if("k", b"2", 1) == 2
    broker.lose_writes("baton-epochs")
    assert await bucket.get("k") == (b"1", 1)
    assert await bucket.put_if("k", b"3", 1) == 2


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*.c", "a.b.c", True),
        ("a.b", "a.*", False),
    ],
)
def test_wildcards_match_as_nats_does(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected
