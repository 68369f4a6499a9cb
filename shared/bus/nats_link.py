"""One connection to a NATS server: opening, losing, regaining, and what may be said on it.

Owns the client library's object and maps its errors. Knows no message types.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as Interest
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, SlowConsumerError

from shared.bus.credentials import Login
from shared.bus.receiver import WAITING_BYTES, WAITING_MESSAGES
from shared.bus.traffic import Traffic
from shared.errors import BusError, BusUnavailable, PayloadTooLarge, StartupError

OUTBOUND_BYTES: Final = 32 * 1024 * 1024
PING_S: Final = 1
RECONNECT_S: Final = 0.1
ROUND_TRIP_S: Final = 5.0

_DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.I)


class Listener(Protocol):
    """Who wants to know what happens to the connection."""

    def lost(self, error: BusError, subject: str = "") -> None:
        """Open requests (on `subject`, or all) will get no reply."""
        ...

    def restored(self) -> None:
        """Connected again, subscriptions included; what was sent meanwhile is gone."""
        ...

    async def renew(self) -> None:
        """The library's client was made anew: take all subscriptions again."""
        ...


class NatsLink:
    """`open` connects; from then on it reconnects for ever, until `close`."""

    def __init__(
        self, url: str, role: str, login: Login, name: str, traffic: Traffic, listener: Listener
    ) -> None:
        self.client = Client()
        self._url = url
        self._role = role
        self._login = login
        self._name = name
        self._traffic = traffic
        self._listener = listener
        self._denied: set[str] = set()
        self._rejected: asyncio.Future[None] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def connected(self) -> bool:
        return self.client.is_connected and not self._closing

    async def open(self, timeout_s: float) -> None:
        """Raises StartupError: no server in time, or credentials that it does not take."""
        self._rejected = asyncio.get_running_loop().create_future()
        opening = asyncio.create_task(self._connect(), name="nats connect")
        try:
            done, _ = await asyncio.wait(
                {opening, self._rejected}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if opening in done:
                return opening.result()
            if self._rejected in done:
                raise StartupError(
                    f"NATS at {self._url} does not know this user or password (role {self._role});"
                    " check --nats-credentials-file"
                )
            raise StartupError(
                f"no NATS server answers at {self._url}: start one (python -m services starts"
                " everything) or set --nats-url"
            )
        finally:
            opening.cancel()
            self._rejected.cancel()
            self._rejected = None

    async def close(self) -> None:
        """Send what is buffered and disconnect. Never raises."""
        self._closing = True
        if self._reviving is not None:
            self._reviving.cancel()
        with suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(ROUND_TRIP_S):
                await self.client.close()

    async def send(
        self, subject: str, data: bytes, fields: dict[str, str], reply: str = ""
    ) -> None:
        if not self.connected:
            raise BusUnavailable("not connected")
        if self.client.pending_data_size + len(data) > OUTBOUND_BYTES:
            raise BusUnavailable("the outbound buffer is full")
        try:
            await self.client.publish(subject, data, reply=reply, headers=fields or None)
        except MaxPayloadError:
            raise PayloadTooLarge(f"message has {len(data)} bytes") from None
        except (NatsError, OSError) as error:
            raise BusUnavailable(f"could not send: {type(error).__name__}") from error

    async def take(
        self, subject: str, queue: str, deliver: Callable[[Msg], Awaitable[None]]
    ) -> Interest:
        """Subscribe; returns when the server has taken it. Raises BusError when it refuses."""
        if not self.connected:
            raise BusUnavailable("not connected")
        self._denied.discard(subject.casefold())
        try:
            async with asyncio.timeout(ROUND_TRIP_S):
                interest = await self.client.subscribe(
                    subject,
                    queue=queue,
                    cb=deliver,
                    pending_msgs_limit=WAITING_MESSAGES,
                    pending_bytes_limit=WAITING_BYTES,
                )
                # The library's PING overtakes buffered commands; a second one cannot any more.
                await self.client.flush()
                await self.client.flush()
        except (NatsError, OSError, TimeoutError) as error:
            raise BusUnavailable(f"could not subscribe: {type(error).__name__}") from error
        if subject.casefold() in self._denied:
            await self.drop(interest)
            raise BusError("this role may not subscribe here")
        return interest

    async def drop(self, interest: Interest) -> None:
        """Take no more from the server; what it already sent is still delivered. The library
        swallows a cancellation here: it is raised again at the end."""
        task = asyncio.current_task()
        cancels = 0 if task is None else task.cancelling()
        with suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(ROUND_TRIP_S):
                if self.connected:
                    await interest.drain()  # type: ignore[no-untyped-call]
                else:
                    await interest.unsubscribe()
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError

    async def _connect(self) -> None:
        """Connect the present client. The library tries for ever."""
        try:
            await self.client.connect(
                self._url,
                name=self._name,
                inbox_prefix=f"_INBOX_{self._role}",
                user=self._login.user,
                password=self._login.password,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_S,  # type: ignore[arg-type]
                connect_timeout=2,
                ping_interval=PING_S,
                max_outstanding_pings=2,
                pending_size=OUTBOUND_BYTES,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
            )
        except (NatsError, ValueError) as error:
            raise StartupError(f"cannot use NATS at {self._url}: {error}") from None

    async def _revive(self) -> None:
        """Until a new client is connected and has all subscriptions again."""
        while not self._closing:
            self.client = Client()
            try:
                await self._connect()
                await self._listener.renew()
            except (BusError, StartupError) as error:
                self._traffic.log.failure("bus.revival_failed", error)
            else:
                await self._on_reconnected()
                return
            with suppress(NatsError, OSError):
                await self.client.close()
            await asyncio.sleep(RECONNECT_S)

    # -- callbacks of the library ----------------------------------------------------------

    async def _on_error(self, error: Exception) -> None:
        text = str(error)
        if isinstance(error, SlowConsumerError):
            self._traffic.dropped("slow_consumer")
        elif found := _DENIED.search(text):
            self._on_denied(found.group(1).casefold(), found.group(2).casefold())
        elif "authorization violation" in text.casefold():
            self._traffic.log.event("bus.credentials_refused", level="error")
            if self._rejected is not None and not self._rejected.done():
                self._rejected.set_result(None)

    def _on_denied(self, action: str, subject: str) -> None:
        """The library lowers the subject in the server's text."""
        if action == "publish":
            self._traffic.denied("publish", subject)
            self._listener.lost(BusError("this role may not publish here"), subject)
        else:
            self._traffic.denied("subscribe", subject)
            self._denied.add(subject)

    async def _on_disconnected(self) -> None:
        if not self._closing:
            self._traffic.log.event("bus.disconnected", level="warning")
        self._listener.lost(BusUnavailable("the connection was lost"))

    async def _on_reconnected(self) -> None:
        self._traffic.reconnects.inc()
        self._traffic.log.event("bus.reconnected", level="warning")
        self._listener.restored()

    async def _on_closed(self) -> None:
        """The library gives up for good after some errors of the server: begin anew."""
        reviving = self._reviving is not None and not self._reviving.done()
        if not self._closing and not reviving and self._rejected is None:
            self._traffic.log.event("bus.closed_by_server", level="error")
            self._reviving = asyncio.create_task(self._revive(), name="nats revive")
