"""The bus contract when the server goes away, and its compare-and-set store."""

from __future__ import annotations

import asyncio

import pytest

from shared.errors import (
    BusUnavailable,
)
from tests.contracts.wires import (
    CANCEL,
    ENDED,
    JOB,
    PLAIN,
    Recorder,
    Wire,
    until_connected,
)


async def test_compare_and_set_lets_one_win(wire: Wire) -> None:
    scheduler = await wire.join("scheduler")
    other = await wire.join("scheduler")
    ours = await scheduler.bus.key_value("baton-epochs")
    theirs = await other.bus.key_value("baton-epochs")
    key = f"worker.{type(wire).__name__}"
    assert await ours.get(key) is None
    first = await ours.put_if(key, b"a", 0)
    assert first
    assert await theirs.put_if(key, b"b", 0) is None
    assert await theirs.get(key) == (b"a", first)
    second = await theirs.put_if(key, b"b", first)
    assert second is not None
    assert second > first
    assert await ours.put_if(key, b"c", first) is None
    assert await ours.get(key) == (b"b", second)


async def test_of_many_writers_exactly_one_gets_the_revision(wire: Wire) -> None:
    scheduler = await wire.join("scheduler")
    bucket = await scheduler.bus.key_value("baton-epochs")
    key = f"race.{type(wire).__name__}"
    won = await asyncio.gather(*(bucket.put_if(key, b"%d" % n, 0) for n in range(20)))
    assert sum(revision is not None for revision in won) == 1


async def test_an_outage_fails_fast_and_everything_returns_after_it(breakable: Wire) -> None:
    gateway, decode = await breakable.join("gateway"), await breakable.join("decode")
    scheduler, told, back = await breakable.join("scheduler"), Recorder(ENDED), asyncio.Event()
    bucket = await scheduler.bus.key_value("baton-epochs")
    revision = await bucket.put_if("worker.d0", b"1", 0)
    await decode.bus.subscribe(JOB, told)
    gateway.bus.on_reconnect(back.set)
    await breakable.outage()
    await until_connected(gateway.bus, False)
    async with asyncio.timeout(0.5):
        with pytest.raises(BusUnavailable):
            await gateway.bus.publish(JOB, CANCEL, PLAIN)
        with pytest.raises(BusUnavailable):
            await gateway.bus.request(JOB, CANCEL, PLAIN, 30.0)
        with pytest.raises(BusUnavailable):
            await gateway.bus.subscribe("baton.gateway.g0.tokens", told)
    await until_connected(scheduler.bus, False)
    with pytest.raises(BusUnavailable):
        await bucket.get("worker.d0")
    await breakable.restore()
    async with asyncio.timeout(5.0):
        await back.wait()
    await until_connected(decode.bus, True)
    await until_connected(scheduler.bus, True)
    assert await gateway.bus.request(JOB, CANCEL, PLAIN, 2.0) == ENDED
    assert await bucket.get("worker.d0") == (b"1", revision)
    assert gateway.metrics.value("baton_bus_reconnects_total") == 1
    assert len(told.got) == 1


async def test_open_requests_end_when_the_connection_is_lost(breakable: Wire) -> None:
    gateway, decode, told = (
        await breakable.join("gateway"),
        await breakable.join("decode"),
        Recorder(),
    )
    await decode.bus.subscribe(JOB, told)
    asked = asyncio.create_task(gateway.bus.request(JOB, CANCEL, PLAIN, 60.0))
    await told.wait(1)
    await breakable.outage()
    async with asyncio.timeout(2.0):
        with pytest.raises(BusUnavailable):
            await asked


async def test_closing_during_an_outage_does_not_hang(breakable: Wire) -> None:
    gateway = await breakable.join("gateway")
    await gateway.bus.subscribe("baton.gateway.g0.tokens", Recorder())
    await breakable.outage()
    await until_connected(gateway.bus, False)
    async with asyncio.timeout(2.0):
        await gateway.bus.close()
