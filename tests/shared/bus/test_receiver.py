"""One subscription's intake: bounded, counted, and ended in order."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus import receiver as module
from shared.bus.bus import Delivery
from shared.bus.receiver import Arrival, Receiver
from shared.bus.traffic import Traffic, label
from shared.telemetry.metrics import Metrics
from shared.wire import codec
from shared.wire.requests import Acknowledged

DATA = codec.encode(Acknowledged())


def _arrival(subject: str = "baton.decode.d0.pages") -> Arrival:
    return Arrival(subject, DATA, None, None)


async def test_beyond_the_limit_messages_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAITING_MESSAGES", 5)
    metrics, go_on, handled = Metrics(), asyncio.Event(), 0

    async def wait(delivery: Delivery) -> None:
        nonlocal handled
        await go_on.wait()
        handled += 1

    intake = Receiver(wait, 2, Traffic(metrics), 1000)
    for _ in range(10):
        intake.offer(_arrival())
    go_on.set()
    await intake.close()
    assert handled == 7
    assert metrics.value("baton_bus_dropped_total", reason="slow_consumer") == 3
    assert metrics.value("baton_bus_messages_total", subject="decode.pages", direction="in") == 7


async def test_waiting_bytes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES", 3 * len(DATA))
    metrics, go_on = Metrics(), asyncio.Event()

    async def wait(delivery: Delivery) -> None:
        await go_on.wait()

    intake = Receiver(wait, 1, Traffic(metrics), 1000)
    for _ in range(6):
        intake.offer(_arrival())
    assert metrics.value("baton_bus_dropped_total", reason="slow_consumer") == 2
    go_on.set()
    await intake.close()


async def test_after_close_nothing_is_taken() -> None:
    metrics = Metrics()

    async def never(delivery: Delivery) -> None:
        raise AssertionError("handled after close")

    intake = Receiver(never, 1, Traffic(metrics), 1000)
    await intake.close()
    intake.offer(_arrival())
    assert metrics.value("baton_bus_dropped_total", reason="closed") == 1


async def test_cancel_ends_handlers_by_force() -> None:
    async def forever(delivery: Delivery) -> None:
        await asyncio.Event().wait()

    intake = Receiver(forever, 1, Traffic(), 1000)
    intake.offer(_arrival())
    intake.offer(_arrival())
    await asyncio.sleep(0)
    intake.cancel()
    async with asyncio.timeout(1):
        await intake.close()


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("baton.scheduler.place", "scheduler.place"),
        ("baton.decode.decode-7.job", "decode.job"),
        ("baton.heartbeat.prefill.p0", "heartbeat.prefill"),
        ("baton.snapshot.kvpool.k0", "snapshot.kvpool"),
        ("baton.cluster.lost", "cluster.lost"),
        ("baton.scheduler.register.decode.d0", "scheduler.register"),
        ("_INBOX_gateway.abc.1", "other"),
        ("baton.snapshot.forged.k0", "other"),
        ("baton.decode.decode-7.forged", "other"),
        ("baton", "other"),
    ],
)
def test_labels_come_from_a_closed_set(subject: str, expected: str) -> None:
    assert label(subject) == expected
