"""What only the NATS adapter can get wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.nats import CORRELATION, NatsBus
from shared.bus.server import NatsServer
from shared.bus.traffic import Traffic
from shared.errors import BusTimeout, BusUnavailable, StartupError
from shared.ids import Attempt, RequestId
from shared.telemetry.metrics import Metrics
from shared.wire import codec
from shared.wire.requests import CancelRequest, Ended
from tests.conftest import connect
from tests.contracts.wires import until, until_connected

JOB = "baton.decode.d0.job"
CANCEL = CancelRequest(RequestId("r1"), Attempt(1), "test")
ENDED = Ended(RequestId("r1"), Attempt(1))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    made = NatsServer(tmp_path / "run")
    made.start()
    yield made
    made.stop()


def _broken() -> None:
    raise ZeroDivisionError


async def _answer(delivery: Delivery) -> Ended:
    return ENDED


async def _freeze(server: NatsServer) -> None:
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    status = Path(f"/proc/{server.process.pid}/stat")
    await until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")


def _thaw(server: NatsServer) -> None:
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGCONT)


async def test_a_reply_to_another_request_is_never_taken(nats_server: NatsServer) -> None:
    """BR-068: a responder that swaps two replies gets neither through."""
    metrics = Metrics()
    asker = await connect(nats_server, "gateway", Traffic(metrics))
    stub = await connect(nats_server, "decode")
    seen: list[tuple[str, str]] = []

    async def swap(message: object) -> None:
        reply, headers = message.reply, message.headers  # type: ignore[attr-defined]
        seen.append((reply, headers[CORRELATION]))
        if len(seen) == 2:
            for target, other in ((0, 1), (1, 0)):
                fields = {CORRELATION: seen[other][1]}
                await stub.client.publish(seen[target][0], codec.encode(ENDED), headers=fields)

    await stub.client.subscribe(JOB, cb=swap)
    await stub.client.flush()
    await stub.client.flush()
    outcomes = await asyncio.gather(
        *(asker.request(JOB, CANCEL, Headers(), 0.3) for _ in range(2)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [BusTimeout, BusTimeout]
    assert metrics.value("baton_bus_dropped_total", reason="stray_reply") == 2
    await asker.close()
    await stub.close()


async def test_a_connection_that_the_library_gave_up_is_made_anew(server: NatsServer) -> None:
    """Some server errors close the client for good; ours comes back with all it had."""
    asker, holder = await connect(server, "gateway"), await connect(server, "decode")
    back = asyncio.Event()
    holder.on_reconnect(_broken)
    holder.on_reconnect(back.set)
    await holder.subscribe(JOB, _answer)
    first = holder.client
    first._transport.write(b"NONSENSE\r\n")  # type: ignore[union-attr]
    async with asyncio.timeout(5):
        await back.wait()
    assert holder.client is not first
    assert await asker.request(JOB, CANCEL, Headers(), 2.0) == ENDED
    await asker.close()
    await holder.close()


async def test_a_frozen_server_is_noticed_in_seconds(server: NatsServer) -> None:
    asker = await connect(server, "gateway")
    await _freeze(server)
    try:
        with pytest.raises(BusUnavailable):
            await asker.request(JOB, CANCEL, Headers(), 30.0)
    finally:
        _thaw(server)
    await until_connected(asker, True)
    await asker.close()


async def test_what_cannot_be_sent_is_refused_instead_of_piling_up(server: NatsServer) -> None:
    speaker = await connect(server, "gateway")
    await _freeze(server)
    long = CancelRequest(RequestId("r" * 4000), Attempt(1), "c" * 4000)
    try:
        with pytest.raises(BusUnavailable):
            for _ in range(20_000):
                await speaker.publish(JOB, long, Headers())
    finally:
        _thaw(server)
    await speaker.close()


async def test_a_wrong_password_is_one_clear_line_at_once(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"user": "decode", "password": "no"}))
    async with asyncio.timeout(3):
        with pytest.raises(StartupError, match="does not know this user or password"):
            await NatsBus.connect(nats_server.url, "decode", str(path))


async def test_no_credential_is_refused(nats_server: NatsServer) -> None:
    with pytest.raises(StartupError, match="credentials"):
        await NatsBus.connect(nats_server.url, "gateway", timeout_s=3.0)


async def test_no_server_is_one_clear_line() -> None:
    with pytest.raises(StartupError, match="no NATS server answers at"):
        await NatsBus.connect("nats://127.0.0.1:1", "gateway", timeout_s=0.3)


@pytest.mark.parametrize("text", ["", "[]", '{"user": "x"}', "\x00"])
async def test_a_damaged_credentials_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(StartupError, match="must hold"):
        await NatsBus.connect("nats://127.0.0.1:1", "gateway", str(path))


async def test_a_missing_credentials_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot read NATS credentials"):
        await NatsBus.connect("nats://127.0.0.1:1", "gateway", str(tmp_path / "none.json"))


async def test_a_client_that_started_before_its_server_waits_for_it(server: NatsServer) -> None:
    server.stop()
    path = str(server.credentials("gateway"))
    opening = asyncio.create_task(NatsBus.connect(server.url, "gateway", path))
    await asyncio.to_thread(server.start)
    bus = await opening
    await until(lambda: bus.connected)
    await bus.close()


@pytest.mark.parametrize("turns", range(6))
async def test_closing_a_subscription_lets_a_cancellation_pass(
    nats_server: NatsServer, turns: int
) -> None:
    """A task that lost it would run on, and its process would never end."""
    bus = await connect(nats_server, "decode")
    subscription = await bus.subscribe(JOB, _answer)
    closing = asyncio.create_task(subscription.close(), name="closing")
    for _ in range(turns):
        await asyncio.sleep(0)
    cancelled = closing.cancel()
    await asyncio.wait({closing}, timeout=5)
    assert closing.cancelled() or not cancelled
    await bus.close()
