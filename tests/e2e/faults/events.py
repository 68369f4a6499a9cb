"""The vocabulary of fault rows: each event does one thing, or waits for one stated condition."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg

from tests.e2e.faults.load import Stream, prompt
from tests.e2e.faults.stage import SETTLE_S, Stage, until


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a row."""

    says: str
    act: Callable[[Stage], Awaitable[None]]


# -- clients -----------------------------------------------------------------------------------


def start(
    count: int = 8,
    *,
    length: int = 1500,
    output: int = 600,
    first: int = 0,
    step: int = 37,
    **parameters: Any,
) -> Event:
    """That many streams with different prompts, each a little longer than the one before."""

    async def act(stage: Stage) -> None:
        for number in range(first, first + count):
            tokens = prompt(number, length + step * (number - first))
            stage.start(Stream(tokens, output, parameters))

    return Event(f"start {count} streams", act)


def tokens_seen(least: int = 1, *, everywhere: bool = True) -> Event:
    """Until all (or any) streams have shown that many tokens."""

    async def act(stage: Stage) -> None:
        which = all if everywhere else any

        async def true() -> bool:
            return which(len(s.seen) >= least or not s.running for s in stage.streams)

        await until(f"{least} tokens", true)

    return Event(f"wait for {least} tokens", act)


def ended() -> Event:
    async def act(stage: Stage) -> None:
        async with asyncio.timeout(120):
            await stage.all_ended()

    return Event("wait for the end of every stream", act)


def hang_up() -> Event:
    async def act(stage: Stage) -> None:
        await asyncio.gather(*(stream.hang_up() for stream in stage.streams))

    return Event("all clients hang up", act)


def refused(code: str, within_s: float = 3.0) -> Event:
    """A new request now gets 503 with that code and a time to wait, without a hang."""

    async def act(stage: Stage) -> None:
        stream = stage.start(Stream(prompt(55, 40), 4), judged=False)
        async with asyncio.timeout(30):
            await stage.end_of(stream)
        took_s = stream.ended_s - stream.sent_s
        assert (stream.status, stream.code) == (503, code), stream.describe()
        assert stream.retry_after, "no Retry-After"
        assert took_s < within_s, f"refused only after {took_s:.2f} s"

    return Event(f"a new request is refused with {code}", act)


def served(output: int = 8, within_s: float = 30.0) -> Event:
    """A new request now gets its known tokens."""

    async def act(stage: Stage) -> None:
        stream = stage.start(Stream(prompt(56, 90), output), judged=False)
        async with asyncio.timeout(within_s):
            await stage.end_of(stream)
        assert stream.complete and not stream.wrong_tokens, stream.describe()

    return Event("a new request is served", act)


def crowd(count: int) -> Event:
    """That many connections that say nothing, held until `disperse`."""

    async def act(stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            await loop.sock_connect(stage.socket(), ("127.0.0.1", stage.cluster.local.ports.public))

    return Event(f"{count} silent connections", act)


def disperse() -> Event:
    async def act(stage: Stage) -> None:
        stage.close_sockets()

    return Event("silent connections close", act)


def huge_bodies(count: int, size_bytes: int = 7 * 1024 * 1024) -> Event:
    """Prompts far beyond the context, all at once; each is refused."""

    async def act(stage: Stage) -> None:
        body = {"model": "hashchain", "prompt": "x" * size_bytes, "max_tokens": 1}
        text = json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}

        async def one() -> int:
            url = f"{stage.cluster.url}/v1/completions"
            async with stage.http.post(url, data=io.BytesIO(text), headers=kind) as response:
                await response.read()
                return response.status

        statuses = await asyncio.gather(*(one() for _ in range(count)))
        assert all(400 <= status < 500 for status in statuses), statuses

    return Event(f"{count} bodies of {size_bytes >> 20} MB", act)


def poisonous(token: int) -> Event:
    """One request that ends whoever computes it; it must be answered with an error."""

    async def act(stage: Stage) -> None:
        stream = stage.start(Stream((*prompt(58, 40), token), 4), judged=False)
        async with asyncio.timeout(60):
            await stage.end_of(stream)
        # Where deaths take long to notice, the stream has begun: the error is its last event.
        assert stream.status in (500, 200), stream.describe()
        assert stream.code == "poison_request", stream.describe()

    return Event("send a poisonous request", act)


# -- waiting -----------------------------------------------------------------------------------


def holds(name: str, entry: str = "requests", least: int = 1) -> Event:
    async def act(stage: Stage) -> None:
        async def true() -> bool:
            return await stage.held(name, entry) >= least

        await until(f"{name} {entry} >= {least}", true)

    return Event(f"wait until {name} holds {least} {entry}", act)


def counts(name: str, metric: str, least: float = 1) -> Event:
    async def act(stage: Stage) -> None:
        async def true() -> bool:
            return await stage.counted(name, metric) >= least

        await until(f"{name} {metric} >= {least:g}", true)

    return Event(f"wait until {name} counts {metric}", act)


def uncounted(metric: str, *names: str) -> Event:
    """Those services never counted it."""

    async def act(stage: Stage) -> None:
        for name in names:
            found = await stage.counted(name, metric)
            assert not found, f"{name} counts {found:g} {metric}"

    return Event(f"{', '.join(names)}: no {metric}", act)


def nothing_held(*names: str, within_s: float = SETTLE_S) -> Event:
    """Those services account for zero, while the fault goes on."""

    async def act(stage: Stage) -> None:
        async def true() -> bool:
            held = await stage.leaks()
            return not any(name in held for name in names)

        await until(f"nothing held by {', '.join(names)}", true, within_s)

    return Event(f"wait until {', '.join(names)} hold nothing", act)


def lasting(seconds: float) -> Event:
    """How long a fault lasts; nothing is waited for by this."""

    async def act(stage: Stage) -> None:
        await asyncio.sleep(seconds)

    return Event(f"for {seconds:g} s", act)


def when_said(role: str, subject: str, then: Event, *, nth: int = 1) -> Event:
    """At the nth message of the subject, heard with the role's credential: do that. Waits."""

    async def act(stage: Stage) -> None:
        struck, seen = asyncio.Event(), 0

        def strike(message: Msg) -> None:
            nonlocal seen
            seen += 1
            if seen == nth:
                struck.set()

        await stage.wire.hear(role, subject, strike)
        stage.after.append((struck, then))

    return Event(f"at message {nth} of {subject}: {then.says}", act)


def strikes() -> Event:
    """Until everything that waits for a message has happened."""

    async def act(stage: Stage) -> None:
        for struck, then in stage.after:
            async with asyncio.timeout(40):
                await struck.wait()
            await then.act(stage)
        stage.after.clear()

    return Event("at that message", act)
