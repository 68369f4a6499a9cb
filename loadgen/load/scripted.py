"""A server whose every answer comes at times known beforehand: what the load generator measures can
be held against them. `python -m loadgen.load.scripted --port 9000`.

It speaks just enough of the OpenAI dialect, keeps when it really wrote (GET /truth), and can do
what bad servers do: cut streams, answer with something else, refuse, send no usage.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from loadgen.load import exact_loop

FAULTS: Final = (
    "cut", "unfinished", "not-http", "not-events", "bad-json", "refuse", "no-usage", "error-event",
    "silent", "no-length", "odd-models",
)  # fmt: skip
_GOLDEN: Final = 0.6180339887498949
_PLASTIC: Final = 0.7548776662466927
_MODEL: Final = "scripted"
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Request k has its first token after ttft_s + x · ttft_spread_s and a further one every
    tpot_s + y · tpot_spread_s, where x and y go evenly through 0..1 as k grows."""

    ttft_s: float = 0.05
    ttft_spread_s: float = 0.05
    tpot_s: float = 0.01
    tpot_spread_s: float = 0.01
    fault: str = ""
    fault_every: int = 1
    """Every so manieth request is hit."""

    def times(self, number: int) -> tuple[float, float]:
        """(ttft, tpot) of request `number`, in seconds."""
        x, y = number * _GOLDEN % 1, number * _PLASTIC % 1
        return self.ttft_s + x * self.ttft_spread_s, self.tpot_s + y * self.tpot_spread_s


@dataclass(slots=True)
class Truth:
    """What one request really got. Monotonic seconds."""

    number: int
    received_s: float
    tokens: int
    trace_id: str
    first_s: float = 0.0
    last_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)


class ScriptedServer:
    """All connections of one server."""

    def __init__(self, script: Script, keep: bool = True) -> None:
        """`keep`: remember what was written, which takes memory."""
        self.script = script
        self.keep = keep
        self.truth: list[Truth] = []
        self.asked = 0

    async def listen(self, port: int = 0) -> asyncio.Server:
        """On loopback."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Peer(self), "127.0.0.1", port, backlog=4_096)

    def told(self) -> list[dict[str, Any]]:
        """For GET /truth."""
        return [
            {
                "number": one.number,
                "trace_id": one.trace_id,
                "ttft_s": one.first_s - one.received_s,
                "e2e_s": one.last_s - one.received_s,
                "tokens": one.tokens,
                "script": self.script.times(one.number),
                "gaps_s": one.gaps_s,
            }
            for one in self.truth
            if one.last_s
        ]


class _Peer(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._pending = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Of asyncio."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None

    def data_received(self, piece: bytes) -> None:
        """Of asyncio."""
        stamp_s = time.monotonic()
        self._pending += piece
        head, found, rest = self._pending.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self._pending = rest[length:]
        method, path, *_ = lines[0].split(" ")
        if method == "GET":
            self._tell(path)
        elif not path.endswith("/completions"):
            self._whole(404, orjson.dumps({"error": {"code": "not_offered"}}))
        else:
            trace_id = headers.get("traceparent", "--").split("-")[1]
            self._begin(path, orjson.loads(rest[:length]), trace_id, stamp_s)

    def _tell(self, path: str) -> None:
        found: Any = {"object": "list", "data": [{"id": _MODEL, "object": "model"}]}
        if path == "/truth":
            found = self._server.told()
        elif self._server.script.fault == "odd-models":
            found = {"models": ["x"]}
        self._whole(200, orjson.dumps(found))

    def _begin(self, path: str, body: dict[str, Any], trace_id: str, stamp_s: float) -> None:
        server = self._server
        number, server.asked = server.asked, server.asked + 1
        script = server.script
        hit = number % script.fault_every == script.fault_every - 1
        fault = script.fault if hit and script.fault != "odd-models" else ""
        tokens = int(body.get("max_tokens") or 16)
        if fault == "refuse":
            error = {"error": {"code": "queue_full", "message": "too much to do"}}
            self._whole(503, orjson.dumps(error))
        elif fault == "not-http":
            self._write(b"220 this is no web server\r\n")
        elif fault == "not-events":
            self._whole(200, orjson.dumps({"choices": [{"text": "whole"}], "usage": {}}))
        elif fault == "no-length":
            self._write(b"HTTP/1.1 500 Oh\r\n\r\nit broke")
            self._close()
        elif fault != "silent":
            prompt = body.get("prompt", body.get("messages", ""))
            truth = Truth(number, stamp_s, tokens, trace_id)
            if server.keep and not fault:
                server.truth.append(truth)
            ttft_s, tpot_s = script.times(number)
            answer = _Answer(path, len(prompt), tokens, fault, truth, tpot_s)
            self._at(stamp_s + ttft_s, answer)

    def _at(self, when_s: float, answer: _Answer) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(when_s, self._next, when_s, answer)

    def _next(self, when_s: float, answer: _Answer) -> None:
        """One token, at its absolute time."""
        stamp_s = time.monotonic()
        self._write((_HEAD if answer.made == 0 else b"") + answer.next(stamp_s))
        if answer.over:
            if answer.fault == "cut":
                self._close()
            return
        self._at(when_s + answer.tpot_s, answer)

    def _whole(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
        self._write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _write(self, content: bytes) -> None:
        if self._transport is not None:
            self._transport.write(content)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Answer:
    """The stream of one request, a token at a time."""

    def __init__(
        self, path: str, prompt: int, tokens: int, fault: str, truth: Truth, tpot_s: float
    ) -> None:
        chat = path.endswith("/chat/completions")
        word = b'"delta":{"content":" la"}' if chat else b'"text":" la"'
        self._choice = b'{"id":"c","choices":[{"index":0,' + word + b',"finish_reason":'
        self._prompt = prompt
        self._tokens = tokens
        self._truth = truth
        self.fault = fault
        self.tpot_s = tpot_s
        self.made = 0
        self.over = False

    def next(self, stamp_s: float) -> bytes:
        """The chunk that is written at `stamp_s`."""
        truth = self._truth
        if self.made:
            truth.gaps_s.append(stamp_s - truth.last_s)
        else:
            truth.first_s = stamp_s
        truth.last_s = stamp_s
        self.made += 1
        self.over = self.made >= self._tokens
        if self.fault and self.made * 2 >= self._tokens:
            self.over = True
            return self._wrong()
        if not self.over:
            return _chunk(b"data: " + self._choice + b"null}]}\n\n")
        return self._end()

    def _end(self) -> bytes:
        last = b"data: " + self._choice + b'"length"}]}\n\n'
        usage = {
            "choices": [],
            "usage": {
                "prompt_tokens": self._prompt,
                "completion_tokens": self._tokens,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }
        counted = b"data: " + orjson.dumps(usage) + b"\n\n"
        return _chunk(last) + _chunk(counted + b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def _wrong(self) -> bytes:
        last = _chunk(b"data: " + self._choice + b'"length"}]}\n\n')
        match self.fault:
            case "no-usage":
                return last + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
            case "bad-json":
                return _chunk(b"data: {half\n\n") + b"0\r\n\r\n"
            case "error-event":
                event = b'data: {"error":{"code":"attempts_exhausted"}}\n\n'
                return _chunk(event) + b"0\r\n\r\n"
            case "unfinished":
                return _chunk(b"data: " + self._choice + b"null}]}\n\n") + b"0\r\n\r\n"
            case _:
                return b"40\r\ndata: {"


def _chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def arguments() -> argparse.ArgumentParser:
    """Flags of the process."""
    parser = argparse.ArgumentParser(prog="python -m loadgen.load.scripted", description=__doc__)
    parser.add_argument("--port", type=int, default=9_000)
    for name, default in (("ttft", 50.0), ("ttft-spread", 50.0), ("tpot", 10.0)):
        parser.add_argument(f"--{name}-ms", type=float, default=default)
    parser.add_argument("--tpot-spread-ms", type=float, default=10.0)
    parser.add_argument("--fault", choices=("", *FAULTS), default="")
    parser.add_argument("--fault-every", type=int, default=1)
    parser.add_argument("--forget", action="store_true", help="keep no truth: memory stays flat")
    return parser


async def _serve(options: argparse.Namespace) -> None:
    script = Script(
        ttft_s=options.ttft_ms / 1000,
        ttft_spread_s=options.ttft_spread_ms / 1000,
        tpot_s=options.tpot_ms / 1000,
        tpot_spread_s=options.tpot_spread_ms / 1000,
        fault=options.fault,
        fault_every=options.fault_every,
    )
    server = await ScriptedServer(script, keep=not options.forget).listen(options.port)
    port = server.sockets[0].getsockname()[1]
    print(f"scripted server on http://127.0.0.1:{port}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    try:
        exact_loop.run(_serve(arguments().parse_args()))
    except KeyboardInterrupt:
        sys.exit(130)
