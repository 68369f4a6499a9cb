"""Listens to the bus with a service's own credential and says what it heard once more, late or
out of order. Raw bytes: nothing is decoded here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.bus.credentials import read_credentials
from shared.bus.server import NatsServer

_MARK = "echo"


@dataclass(slots=True)
class Heard:
    """Messages on one subject, in their order."""

    messages: list[Msg] = field(default_factory=list)


class Wire:
    """One connection per role, opened when first used."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._clients: dict[str, Client] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Wire]:
        try:
            yield self
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for client in self._clients.values():
                await client.close()

    async def client(
        self, role: str, on_error: Callable[[Exception], None] | None = None
    ) -> Client:
        """The role's connection; `on_error` hears refusals of one that is not open yet."""
        if role not in self._clients:
            login = read_credentials(str(self._server.credentials(role)))

            async def quiet(error: Exception) -> None:
                """Without this the library would print it."""
                if on_error is not None:
                    on_error(error)

            self._clients[role] = await nats.connect(
                self._server.url,
                user=login.user,
                password=login.password,
                inbox_prefix=f"_INBOX_{role}".encode(),
                error_cb=quiet,
                reconnect_time_wait=0.1,
                max_reconnect_attempts=-1,
            )
        return self._clients[role]

    async def hear(
        self, role: str, subject: str, then: Callable[[Msg], None] | None = None
    ) -> Heard:
        """Everything said on the subject from now on; `then` is called at each message."""
        heard = Heard()

        async def take(message: Msg) -> None:
            if _MARK in (message.headers or {}):
                return
            heard.messages.append(message)
            if then is not None:
                then(message)

        client = await self.client(role)
        await client.subscribe(subject, cb=take)
        await client.flush()
        return heard

    async def echo(
        self, listener: str, speaker: str, subject: str, *, late_s: float = 0.0
    ) -> Heard:
        """Every message of the subject is said once more, up to `late_s` later."""
        client = await self.client(speaker)
        chance = random.Random(subject)

        async def again(message: Msg, pause_s: float) -> None:
            await asyncio.sleep(pause_s)
            await self._say(client, message)

        def later(message: Msg) -> None:
            work = again(message, chance.uniform(0.0, late_s))
            task = asyncio.create_task(work, name="echo")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return await self.hear(listener, subject, later)

    async def repeat(self, speaker: str, heard: Heard) -> int:
        """Say everything once more, the last first. How many messages that were."""
        client = await self.client(speaker)
        said = list(reversed(heard.messages))
        for message in said:
            await self._say(client, message)
        await client.flush()
        return len(said)

    async def _say(self, client: Client, message: Msg) -> None:
        headers = {**(message.headers or {}), _MARK: "1"}
        await client.publish(message.subject, message.data, headers=headers)
