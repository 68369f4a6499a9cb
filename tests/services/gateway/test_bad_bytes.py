"""Heads, bodies and bytes that are no request: refused by the listener, in our words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from services.gateway import body as body_module
from tests.services.gateway.rig import Rig, chat_body, rig


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made
        assert made.cluster.placed == [], "something was sent"
        assert not any(made.app.accounting().values())


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"Content-Type": "multipart/form-data"}, 415, "unsupported_media_type"),
        ({"Content-Type": "application/json; charset=utf-16"}, 415, "unsupported_media_type"),
        (
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
            415,
            "unsupported_media_type",
        ),
        (
            {"Content-Type": "application/json", "Content-Length": "99999999"},
            413,
            "body_too_large",
        ),
    ],
)
async def test_head_fields(gateway: Rig, headers: dict[str, str], status: int, code: str) -> None:
    fields = {"Host": "x", "Content-Length": "2", **headers}
    answer = await talk(gateway, "POST /v1/chat/completions HTTP/1.1", fields, b"{}")
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert error_code(answer) == code


async def talk(gateway: Rig, line: str, fields: dict[str, str], body: bytes = b"") -> bytes:
    """Send bytes as they are; everything that comes back within the time."""
    port = gateway.app.ports["port"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = line + "\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(head.encode("latin-1") + b"\r\n" + body)
    try:
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"}}")
    finally:
        writer.close()
    return answer


def error_code(answer: bytes) -> str:
    found: str = orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]
    return found


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nsecret word: <script>\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.0\r\nHost: x\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_request(gateway: Rig, raw: bytes) -> None:
    port = gateway.app.ports["port"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    async with asyncio.timeout(5):
        answer = await reader.readuntil(b"}}")
    writer.close()
    assert answer.split(b" ")[1] == b"400" and b"application/json" in answer
    assert error_code(answer) == "invalid_parameter"
    assert b"secret" not in answer and b"script" not in answer


async def test_a_body_that_never_comes(gateway: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module.read_body, "__defaults__", (0.2,))
    fields = {"Host": "x", "Content-Type": "application/json", "Content-Length": "50"}
    answer = await talk(gateway, "POST /v1/chat/completions HTTP/1.1", fields, b'{"model"')
    assert answer.startswith(b"HTTP/1.1 408 ") and b"Connection: close" in answer
    assert error_code(answer) == "request_timeout"


async def test_a_head_that_never_ends(gateway: Rig) -> None:
    gateway.app._doors["port"].head_s = 0.2
    port = gateway.app.ports["port"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/chat")
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ") and error_code(answer) == "request_timeout"


async def test_an_endless_chunked_body_is_cut_at_the_cap(tmp_path: Path) -> None:
    async with rig(tmp_path, body_bytes=10_000) as gateway:
        port = gateway.app.ports["port"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(12_000):
            writer.write(b"1\r\n \r\n")
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"}}")
        writer.close()
        assert error_code(answer) == "body_too_large"


async def test_a_big_body_may_ask_first(tmp_path: Path) -> None:
    async with rig(tmp_path) as gateway:
        payload = orjson.dumps(chat_body())
        fields = {
            "Host": "x",
            "Content-Type": "application/json",
            "Content-Length": str(len(payload)),
            "Expect": "100-continue",
        }
        port = gateway.app.ports["port"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode())
        async with asyncio.timeout(5):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(payload)
            assert b" 200 " in await reader.readline()
        writer.close()


async def test_half_sent_requests_do_not_hinder_others(tmp_path: Path) -> None:
    async with rig(tmp_path) as gateway:
        port = gateway.app.ports["port"]
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        for _, writer in idle:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        began = time.monotonic()
        assert (await gateway.chat())[0] == 200
        assert time.monotonic() - began < 1.0
        for _, writer in idle:
            writer.close()
