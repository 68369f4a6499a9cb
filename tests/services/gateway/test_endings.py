"""Clients that leave, workers that die, a bus that goes away: over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import orjson
import pytest

from services.gateway import answering, sse
from shared.wire.requests import Refused
from tests.builders import until
from tests.services.gateway.rig import MODEL, Rig, chat_body, ids, rig, text_of

LONG = ids("".join(chr(97 + n % 26) for n in range(3000)))
LONG_TEXT = bytes(LONG[:-1]).decode()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def raw(gateway: Rig, body: dict[str, Any]) -> tuple[asyncio.StreamReader, Any]:
    """A hand-made connection that has sent a chat request."""
    port = gateway.app.ports["port"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = orjson.dumps(body)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    writer.write(head.encode() + payload)
    await writer.drain()
    return reader, writer


# -- clients -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_first_token(gateway: Rig, stream: bool) -> None:
    gateway.script.pause_after = 0
    _, writer = await raw(gateway, chat_body(stream=stream))
    await until(lambda: len(gateway.cluster.decodes[0].jobs) == 1)
    writer.close()
    await gateway.settled()
    assert [c.cause for c in gateway.cluster.decodes[0].cancelled] == ["client_gone"]
    assert [end.outcome for end in gateway.cluster.ended] == ["cancelled"]


async def test_a_client_that_leaves_mid_stream(gateway: Rig) -> None:
    gateway.script.route = "disaggregated"
    gateway.script.tokens, gateway.script.pause_after = LONG, 20
    reader, writer = await raw(gateway, chat_body(stream=True, max_tokens=4000))
    await reader.readuntil(b"data: ")
    writer.close()
    await gateway.settled()
    assert len(gateway.cluster.decodes[0].cancelled) == 1
    assert len(gateway.cluster.prefill.cancelled) == 1


async def test_clients_cut_at_once_leave_nothing(gateway: Rig) -> None:
    gateway.script.tokens, gateway.script.pause_after = LONG, 5
    for _ in range(3):
        opened = [await raw(gateway, chat_body(stream=n % 2 == 0)) for n in range(40)]
        for _, writer in opened:
            writer.close()
        await gateway.settled()
    gateway.script.pause_after = None
    assert (await gateway.chat())[0] == 200


async def test_a_client_that_does_not_read_is_cut(
    gateway: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kernel takes is bounded here; then the write waits, and only so long."""
    monkeypatch.setattr(sse, "WRITE_S", 0.5)
    gateway.script.tokens, gateway.script.chunk = ids("x" * 8_000), 4
    gateway.script.pause_after = 6_000
    body = orjson.dumps(chat_body(stream=True, max_tokens=8_001, return_token_ids=True))
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    reader.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(reader, ("127.0.0.1", gateway.app.ports["port"]))
    await until(lambda: bool(gateway.connections()))
    (ours,) = gateway.connections()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    await loop.sock_sendall(
        reader, head.encode() + b"Content-Type: application/json\r\n\r\n" + body
    )
    await until(lambda: gateway.app.accounting()["sessions"] == 1)
    assert (await gateway.chat(max_tokens=3))[0] == 200
    await gateway.settled()
    assert gateway.cluster.decodes[0].cancelled[0].cause == "client_too_slow"
    reader.close()


@pytest.mark.parametrize("turns", range(6))
async def test_a_slow_answer_is_not_taken_for_a_late_head(gateway: Rig, turns: int) -> None:
    """The body comes some turns of the loop after its head, and the answer after the deadline
    for heads."""
    gateway.script.pause_after = 0
    gateway.app._doors["port"].head_s = 0.2
    payload = orjson.dumps(chat_body())
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.app.ports["port"])
    await until(lambda: bool(gateway.protocols()))
    (ours,) = gateway.protocols()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n"
    ours.data_received(head.encode() + b"Content-Type: application/json\r\n\r\n")
    for _ in range(turns):
        await asyncio.sleep(0)
    ours.data_received(payload)
    asyncio.get_running_loop().call_later(0.5, gateway.script.resume.set)
    async with asyncio.timeout(10):
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    writer.close()


async def test_silence_is_filled_with_comments(
    gateway: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "KEEPALIVE_S", 0.05)
    monkeypatch.setattr(answering, "HOLD_STATUS_S", 0.05)
    gateway.script.pause_after = 0
    reader, writer = await raw(gateway, chat_body(stream=True))
    await reader.readuntil(b": keepalive\n\n")
    gateway.script.pause_after = None
    gateway.script.resume.set()
    assert b"[DONE]" in await reader.readuntil(b"[DONE]\n\n")
    writer.close()


# -- workers -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fail_at", "vanish_at"])
@pytest.mark.parametrize("route", ["colocated", "disaggregated"])
async def test_a_second_attempt_goes_on_token_by_token(gateway: Rig, how: str, route: str) -> None:
    gateway.script.tokens, gateway.script.route = ids("abcdefghij"), route
    setattr(gateway.script, how, {1: 4})
    events = await gateway.events(stream_options={"include_usage": True})
    assert text_of(events) == "abcdefghij" and events[-1] == "[DONE]"
    usage = events[-2]
    assert isinstance(usage, dict) and usage["usage"]["completion_tokens"] == 11
    second = gateway.cluster.decodes[1].jobs[0]
    assert second.attempt == 2 and second.first_index == 4
    assert second.tokens[-4:] == tuple(b"abcd")
    assert [place.attempt for place in gateway.cluster.placed] == [1, 2]
    await gateway.settled()


async def test_a_whole_answer_survives_a_death(gateway: Rig) -> None:
    gateway.script.vanish_at = {1: 2}
    status, body, _ = await gateway.chat(stop="lo")
    assert (status, body["choices"][0]["message"]["content"]) == (200, "Hel")


async def test_a_stream_that_cannot_go_on_breaks_visibly(gateway: Rig) -> None:
    gateway.script.fail_at = {1: 1, 2: 2, 3: 3}
    seen: list[Any] = []
    with pytest.raises(aiohttp.ClientPayloadError):
        async for event in gateway.stream():
            seen.append(event)  # noqa: PERF401 - what came before the break matters
    assert text_of(seen) == "Hel"
    assert seen[-1]["error"]["code"] == "attempts_exhausted"
    assert "[DONE]" not in seen
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in seen[:-1])
    await gateway.settled()


async def test_the_openai_client_sees_the_break(gateway: Rig) -> None:
    gateway.script.fail_at = {1: 1, 2: 2, 3: 3}
    async with openai.AsyncOpenAI(
        base_url=gateway.url + "/v1", api_key="none", max_retries=0
    ) as api:
        stream = await api.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass


async def test_lost_chunks_are_asked_for(tmp_path: Path) -> None:
    async with rig(tmp_path, stall_s=0.2) as gateway:
        gateway.script.lose = {0, 2, 5}
        events = await gateway.events()
        assert text_of(events) == "Hello" and events[-1] == "[DONE]"


@pytest.mark.parametrize("code", ["no_worker", "incompatible_workers"])
async def test_a_refused_placement_is_a_503_with_a_time(gateway: Rig, code: str) -> None:
    gateway.script.refuse = [Refused(code, "not now", 7.0)]
    status, body, headers = await gateway.chat(stream=True)
    assert status == 503 and body["error"]["code"] == code
    assert headers["Retry-After"] == "7" and headers["x-should-retry"] == "true"
    assert headers["x-baton-reason"] == code


async def test_a_full_cluster_is_waited_for_unless_the_client_will_not(gateway: Rig) -> None:
    full = Refused("kv_pages_exhausted", "all full", 7.0)
    gateway.script.refuse = [full, full]
    assert (await gateway.chat())[0] == 200
    gateway.script.refuse = [full] * 50
    status, body, headers = await gateway.post(
        "/v1/chat/completions", chat_body(), x_baton_no_queue="1"
    )
    assert (status, body["error"]["code"]) == (503, "kv_pages_exhausted")
    assert headers["Retry-After"] == "7"


async def test_token_ids_come_with_their_text_when_asked_for(gateway: Rig) -> None:
    plain = await gateway.events()
    assert not [event for event in plain if "token_ids" in str(event)]
    _, whole, _ = await gateway.chat(return_token_ids=True)
    events = await gateway.events(return_token_ids=True)
    chunks = [event for event in events if isinstance(event, dict)]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    streamed = [i for c in chunks for choice in c["choices"] for i in choice.get("token_ids", ())]
    assert streamed == whole["choices"][0]["token_ids"]
    assert len(streamed) == whole["usage"]["completion_tokens"]


async def test_a_refusing_worker_is_replaced(gateway: Rig) -> None:
    gateway.script.refuse_jobs = [Refused("draining", "going", None)]
    assert (await gateway.chat())[0] == 200
    assert len(gateway.cluster.decodes[1].jobs) == 1


async def test_the_clients_deadline_holds(gateway: Rig) -> None:
    gateway.script.pause_after = 0
    status, body, _ = await gateway.post(
        "/v1/chat/completions", chat_body(), x_baton_deadline_ms="300"
    )
    assert (status, body["error"]["code"]) == (504, "deadline_exceeded")
    await gateway.settled()


async def test_a_deadline_mid_stream_is_an_error_event(gateway: Rig) -> None:
    gateway.script.pause_after = 2
    url, fields = gateway.url + "/v1/chat/completions", {"x-baton-deadline-ms": "400"}
    async with gateway.http.post(url, json=chat_body(stream=True), headers=fields) as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


# -- the bus -------------------------------------------------------------------------------


async def test_while_the_bus_is_down_requests_fail_at_once(gateway: Rig) -> None:
    gateway.broker.outage()
    async with asyncio.timeout(1.0):
        status, body, headers = await gateway.chat()
    assert (status, body["error"]["code"]) == (503, "control_plane_down")
    assert "Retry-After" in headers
    async with gateway.http.get(gateway.url + "/readyz") as answer:
        assert answer.status == 503
    gateway.broker.restore()


async def test_streams_outlive_an_outage(tmp_path: Path) -> None:
    async with rig(tmp_path, stall_s=0.2) as gateway:
        gateway.script.tokens, gateway.script.pause_after = ids("abcdefghij"), 3
        async with asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(gateway.events(), name=f"s{n}") for n in range(8)]
            await until(lambda: len(gateway.cluster.decodes[0].jobs) == 8)
            gateway.broker.outage()
            await asyncio.sleep(0.5)
            gateway.script.pause_after = None
            gateway.broker.restore()
        assert {text_of(task.result()) for task in streams} == {"abcdefghij"}
        assert len(gateway.cluster.placed) == 8
        gateway.script.resume.set()
        await gateway.settled()


async def test_a_missing_scheduler_is_waited_for(gateway: Rig) -> None:
    await gateway.cluster.bus.close()
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(gateway.chat(), name="chat")
        await asyncio.sleep(0.3)
        replacement = type(gateway.cluster)(gateway.broker, tasks)
        replacement.decodes = gateway.cluster.decodes
        await replacement.bus.subscribe("baton.scheduler.place", replacement._place)
    assert answer.result()[0] == 200


# -- the process ---------------------------------------------------------------------------


async def test_draining_lets_streams_finish_and_takes_nothing_new(gateway: Rig) -> None:
    gateway.script.pause_after = 2
    async with asyncio.TaskGroup() as tasks:
        stream = tasks.create_task(gateway.events(), name="stream")
        await until(lambda: len(gateway.cluster.decodes[0].jobs) == 1)
        drain = tasks.create_task(gateway.app.drain(), name="drain")
        await until(lambda: not gateway.app.ready())
        status, body, _ = await gateway.chat()
        assert (status, body["error"]["code"]) == (503, "draining")
        gateway.script.pause_after = None
        gateway.script.resume.set()
        await drain
    assert text_of(stream.result()) == "Hello"


async def test_streams_that_outlast_the_drain_end_with_an_error(tmp_path: Path) -> None:
    async with rig(tmp_path, drain_s=1.2) as gateway:
        gateway.script.pause_after = 2
        seen: list[Any] = []

        async def read() -> None:
            with pytest.raises(aiohttp.ClientPayloadError):
                async for event in gateway.stream():
                    seen.append(event)  # noqa: PERF401 - what came before the break matters

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(), name="stream")
            await until(lambda: len(seen) >= 2)
            await gateway.app.drain()
        assert seen[-1]["error"]["code"] == "draining"
