"""The bus over NATS: fails fast while disconnected, counts what is lost, ends in order.

The client library's own requests, inbox and drain are not used: they lose a cancellation, mix up
replies under load and cut the last handler.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as Interest

from shared.bus.bus import Handler
from shared.bus.credentials import read_credentials
from shared.bus.headers import Headers
from shared.bus.nats_kv import NatsKeyValue
from shared.bus.nats_link import NatsLink
from shared.bus.receiver import Arrival, Receiver
from shared.bus.replies import Replies
from shared.bus.traffic import Traffic
from shared.errors import BusError, BusUnavailable, NoResponder, PayloadTooLarge
from shared.wire import codec
from shared.wire.codec import Message
from shared.wire.subjects import CLIENT_GONE

CORRELATION: Final = "baton-reply"
"""Header that a reply repeats: the token of its request."""
HEADER_ALLOWANCE_BYTES: Final = 2048
HANDLERS_END_S: Final = 10.0
_NO_RESPONDERS: Final = "503"


class NatsBus:
    """One connection with one role's credential. `connect` makes it."""

    def __init__(
        self, url: str, role: str, credentials_file: str, name: str, traffic: Traffic
    ) -> None:
        login = read_credentials(credentials_file)
        self._traffic = traffic
        self._replies = Replies(traffic)
        self._link = NatsLink(url, role, login, name, traffic, self)
        self._inbox = f"_INBOX_{role}.{secrets.token_hex(8)}"
        self._subscriptions: set[NatsSubscription] = set()
        self._callbacks: list[Callable[[], None]] = []
        self._watchers: list[Callable[[str, str], None]] = []

    @classmethod
    async def connect(
        cls,
        url: str,
        role: str,
        credentials_file: str = "",
        *,
        name: str = "",
        traffic: Traffic | None = None,
        timeout_s: float = 8.0,
    ) -> NatsBus:
        """Connect, waiting up to `timeout_s` for the server. Raises StartupError: no server
        there, or credentials that it does not take."""
        bus = cls(url, role, credentials_file, name or role, traffic or Traffic())
        try:
            await bus._link.open(timeout_s)
            await bus._link.take(f"{bus._inbox}.*", "", bus._on_reply)
        except BaseException:
            await bus.close()
            raise
        return bus

    @property
    def connected(self) -> bool:
        return self._link.connected

    @property
    def max_payload_bytes(self) -> int:
        return min(self.client.max_payload - HEADER_ALLOWANCE_BYTES, codec.MAX_BYTES)

    @property
    def client(self) -> Client:
        """The library's connection; another one after it was given up and made anew."""
        return self._link.client

    async def publish(self, subject: str, message: Message, headers: Headers) -> None:
        await self._link.send(subject, self._encoded(subject, message), headers.encode())

    async def request(
        self, subject: str, message: Message, headers: Headers, timeout_s: float
    ) -> Message:
        data = self._encoded(subject, message)
        if headers.deadline_s is None:
            headers = replace(headers, deadline_s=timeout_s)
        fields = headers.encode()

        async def send(token: int) -> None:
            fields[CORRELATION] = str(token)
            await self._link.send(subject, data, fields, reply=f"{self._inbox}.{token}")

        return await self._replies.ask(subject, timeout_s, send)

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", concurrency: int = 64
    ) -> NatsSubscription:
        """Returns when the server has taken the subscription. Raises BusError when this role may
        not have it, BusUnavailable while disconnected."""
        receiver = Receiver(handler, concurrency, self._traffic, self.max_payload_bytes)
        subscription = NatsSubscription(self, subject, queue, receiver)
        await subscription.attach(self._link)
        self._subscriptions.add(subscription)
        return subscription

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def watch(self, gone: Callable[[str, str], None]) -> None:
        if not self._watchers:
            await self._link.take(CLIENT_GONE, "", self._on_gone)
        self._watchers.append(gone)

    async def key_value(self, bucket: str) -> NatsKeyValue:
        """The JetStream bucket of that name, made when it is not there."""
        opened = NatsKeyValue(self, bucket)
        await opened.open()
        return opened

    async def close(self) -> None:
        """Stop receiving, let running handlers end (at most ten seconds), send what they
        answered, disconnect. Never raises."""
        subscriptions = list(self._subscriptions)
        try:
            async with asyncio.timeout(HANDLERS_END_S):
                for subscription in subscriptions:
                    await subscription.stop()
                for subscription in subscriptions:
                    await subscription.receiver.close()
        except TimeoutError:
            for subscription in subscriptions:
                subscription.receiver.cancel()
        self.lost(BusUnavailable("the connection was closed"))
        await self._link.close()

    # -- what the link tells ---------------------------------------------------------------

    def lost(self, error: BusError, subject: str = "") -> None:
        self._replies.fail(error, subject=subject)

    def restored(self) -> None:
        for callback in self._callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - one listener must not stop the others
                self._traffic.log.failure("bus.callback_failed", error)

    async def renew(self) -> None:
        await self._link.take(f"{self._inbox}.*", "", self._on_reply)
        if self._watchers:
            await self._link.take(CLIENT_GONE, "", self._on_gone)
        for subscription in list(self._subscriptions):
            await subscription.attach(self._link)

    def forget(self, subscription: NatsSubscription) -> None:
        """The subscription was closed by its owner."""
        self._subscriptions.discard(subscription)

    def arrival(self, message: Msg) -> Arrival:
        """A message of the library as receivers know it."""
        fields = message.headers
        if not message.reply:
            return Arrival(message.subject, message.data, fields, None)
        correlation = (fields or {}).get(CORRELATION, "")
        answer = {CORRELATION: correlation} if correlation else {}
        reply = partial(self._reply, message.reply, answer)
        return Arrival(message.subject, message.data, fields, reply)

    # -- inside ----------------------------------------------------------------------------

    def _encoded(self, subject: str, message: Message) -> bytes:
        if not self.connected:
            raise BusUnavailable("not connected")
        data = codec.encode(message)
        if len(data) > self.max_payload_bytes:
            raise PayloadTooLarge(f"message has {len(data)} bytes")
        self._traffic.sent(subject)
        return data

    async def _reply(self, subject: str, fields: dict[str, str], data: bytes) -> None:
        await self._link.send(subject, data, fields)

    async def _on_reply(self, message: Msg) -> None:
        text = message.subject.rpartition(".")[2]
        token = int(text) if text.isdecimal() else 0
        fields = message.headers or {}
        if not message.data and fields.get("Status") == _NO_RESPONDERS:
            self._replies.fail(NoResponder("nobody listens on the subject"), token=token)
        elif fields.get(CORRELATION) != text:
            self._traffic.dropped("stray_reply")
        else:
            self._replies.resolve(token, message.data)

    async def _on_gone(self, message: Msg) -> None:
        """The server's advisory. Only the server can say something on that subject."""
        try:
            client = orjson.loads(message.data)["client"]
            role, name = str(client["user"]), str(client["name"])
        except (ValueError, KeyError, TypeError):
            self._traffic.dropped("strange_advisory")
            return
        for gone in self._watchers:
            gone(role, name)


class NatsSubscription:
    """One interest of ours; it outlives the library's connection."""

    def __init__(self, bus: NatsBus, subject: str, queue: str, receiver: Receiver) -> None:
        self.receiver = receiver
        self._bus = bus
        self._subject = subject
        self._queue = queue
        self._taken: tuple[NatsLink, Interest] | None = None

    async def attach(self, link: NatsLink) -> None:
        """Subscribe on the present connection and wait until the server has taken it."""
        interest = await link.take(self._subject, self._queue, self._deliver)
        self._taken = (link, interest)

    async def stop(self) -> None:
        """Take no more from the server; what it already sent still reaches the receiver."""
        taken, self._taken = self._taken, None
        if taken is not None:
            link, interest = taken
            await link.drop(interest)

    async def close(self) -> None:
        self._bus.forget(self)
        await self.stop()
        await self.receiver.close()

    async def _deliver(self, message: Msg) -> None:
        self.receiver.offer(self._bus.arrival(message))
