"""Ready means: a request could be placed now."""

from __future__ import annotations

import pytest

from services.gateway.standing import STALE_BEATS, Standing
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.clock import ManualClock
from shared.errors import Code
from shared.ids import Epoch
from shared.wire import subjects
from shared.wire.workers import ClusterStatus
from tests.builders import until

BEAT_S = 1.0


def news(*models: str, epoch: int = 1) -> ClusterStatus:
    return ClusterStatus(Epoch(epoch), models)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def standing(clock: ManualClock, broker: MemoryBroker) -> Standing:
    return Standing(MemoryBus(broker, "gateway-0", "gateway"), clock, "mine", BEAT_S)


def test_before_the_first_news_nothing_can_be_placed(standing: Standing) -> None:
    assert standing.obstacle is Code.CONTROL_PLANE_DOWN


def test_a_worker_for_this_model_must_be_there(standing: Standing) -> None:
    standing.hear(news("other"))
    assert standing.obstacle is Code.NO_WORKER
    standing.hear(news("mine", "other"))
    assert standing.obstacle is None
    standing.hear(news())
    assert standing.obstacle is Code.NO_WORKER


def test_a_silent_scheduler_is_none(standing: Standing, clock: ManualClock) -> None:
    standing.hear(news("mine"))
    clock.advance(STALE_BEATS * BEAT_S)
    assert standing.obstacle is None
    clock.advance(0.1)
    assert standing.obstacle is Code.CONTROL_PLANE_DOWN
    standing.hear(news("mine"))
    assert standing.obstacle is None


def test_a_deposed_leader_is_not_believed(standing: Standing, clock: ManualClock) -> None:
    standing.hear(news("mine", epoch=2))
    standing.hear(news(epoch=1))
    assert standing.obstacle is None
    clock.advance(STALE_BEATS * BEAT_S + 0.1)
    standing.hear(news(epoch=1))
    assert standing.obstacle is Code.NO_WORKER


async def test_news_come_over_the_bus(standing: Standing, broker: MemoryBroker) -> None:
    await standing.start()
    scheduler = MemoryBus(broker, "scheduler-0", "scheduler")
    await scheduler.publish(subjects.SERVING, news("mine"), Headers())
    await until(lambda: standing.obstacle is None)
    broker.outage()
    assert standing.obstacle is Code.CONTROL_PLANE_DOWN
