"""A bus inside one process, as strict as NATS and nastier: for tests and the virtual cluster.

Several MemoryBus clients share one MemoryBroker. Bytes, codec, limits and errors are those of the
real adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from shared.bus.bus import Handler
from shared.bus.headers import Headers
from shared.bus.memory_broker import Bucket, Client, Interest, MemoryBroker, matches
from shared.bus.receiver import Receiver
from shared.bus.replies import Replies
from shared.bus.traffic import Traffic
from shared.errors import BusError, BusUnavailable, NoResponder, PayloadTooLarge
from shared.wire import codec, subjects
from shared.wire.codec import Message

HEADER_ALLOWANCE_BYTES: Final = 2048


class MemoryBus:
    """One client. With a `role` the permissions of subjects.GRANTS hold as on the real server."""

    def __init__(
        self, broker: MemoryBroker, name: str, role: str = "", traffic: Traffic | None = None
    ) -> None:
        self.name = name
        self.role = role
        self._broker = broker
        self._grants = subjects.GRANTS.get(role)
        self._traffic = traffic or Traffic()
        self._replies = Replies(self._traffic)
        self._callbacks: list[Callable[[], None]] = []
        self._watchers: list[Callable[[str, str], None]] = []
        self._closed = False
        broker.clients.append(self)

    @property
    def connected(self) -> bool:
        return self._broker.up and not self._closed

    @property
    def max_payload_bytes(self) -> int:
        return self._broker.max_payload_bytes - HEADER_ALLOWANCE_BYTES

    async def publish(self, subject: str, message: Message, headers: Headers) -> None:
        self._broker.send(self, subject, self._ready(subject, message), headers.encode(), 0)

    async def request(
        self, subject: str, message: Message, headers: Headers, timeout_s: float
    ) -> Message:
        data = self._ready(subject, message)
        if headers.deadline_s is None:
            headers = replace(headers, deadline_s=timeout_s)
        fields = headers.encode()

        async def send(token: int) -> None:
            if not self._broker.send(self, subject, data, fields, token):
                raise NoResponder("nobody listens on the subject")

        return await self._replies.ask(subject, timeout_s, send)

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", concurrency: int = 64
    ) -> MemorySubscription:
        if not self.connected:
            raise BusUnavailable("not connected")
        self._permit("subscribe", subject)
        receiver = Receiver(handler, concurrency, self._traffic, self.max_payload_bytes)
        interest = Interest(self, subject, queue, receiver)
        self._broker.interests.append(interest)
        return MemorySubscription(self._broker, interest)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def watch(self, gone: Callable[[str, str], None]) -> None:
        if not self.connected:
            raise BusUnavailable("not connected")
        self._permit("subscribe", subjects.CLIENT_GONE)
        self._watchers.append(gone)

    async def key_value(self, bucket: str) -> MemoryKeyValue:
        """The bucket of that name, made when it is not there."""
        self._broker.buckets.setdefault(bucket, Bucket())
        return MemoryKeyValue(self, self._broker, bucket)

    async def close(self) -> None:
        for interest in self._interests():
            await MemorySubscription(self._broker, interest).close()
        self._leave()

    def vanish(self) -> None:
        """The process lost power: it neither hears nor says anything any more, and no cleanup of
        its handlers runs because of this call."""
        for interest in self._interests():
            interest.receiver.abandon()
            self._broker.interests.remove(interest)
        self._leave()

    def _interests(self) -> list[Interest]:
        return [entry for entry in self._broker.interests if entry.owner is self]

    def _leave(self) -> None:
        if not self._closed:
            self.disconnected()
            self._closed = True
            self._broker.left(self)

    def _ready(self, subject: str, message: Message) -> bytes:
        if not self.connected:
            raise BusUnavailable("not connected")
        data = codec.encode(message)
        if len(data) > self.max_payload_bytes:
            raise PayloadTooLarge(f"message has {len(data)} bytes")
        self._permit("publish", subject)
        self._traffic.sent(subject)
        return data

    def _permit(self, action: str, subject: str) -> None:
        if self._grants is None or any(matches(own, subject) for own in self._grants[action]):
            return
        self._traffic.denied(action, subject)
        raise BusError(f"this role may not {action} here")

    async def reply(self, asker: Client, token: int, data: bytes) -> None:
        if not self.connected:
            raise BusUnavailable("not connected")
        self._broker.carry(self, asker, "reply", partial(asker.resolve, token, data))

    def resolve(self, token: int, data: bytes) -> None:
        self._replies.resolve(token, data)

    def disconnected(self) -> None:
        self._replies.fail(BusUnavailable("the connection was lost"))

    def gone(self, role: str, name: str) -> None:
        for watcher in self._watchers:
            watcher(role, name)

    def reconnected(self) -> None:
        self._traffic.reconnects.inc()
        for callback in self._callbacks:
            callback()


class MemorySubscription:
    """One client's interest in a subject."""

    def __init__(self, broker: MemoryBroker, interest: Interest) -> None:
        self._broker = broker
        self._interest = interest

    async def close(self) -> None:
        if self._interest in self._broker.interests:
            self._broker.interests.remove(self._interest)
        await self._interest.receiver.close()


class MemoryKeyValue:
    """A bucket of the broker, seen by one client. Revisions count writes of the whole bucket."""

    def __init__(self, bus: MemoryBus, broker: MemoryBroker, bucket: str) -> None:
        self._bus = bus
        self._broker = broker
        self._bucket = bucket

    async def get(self, key: str) -> tuple[bytes, int] | None:
        return self._store().entries.get(key)

    async def put_if(self, key: str, value: bytes, revision: int) -> int | None:
        return self._store().put_if(key, value, revision)

    def _store(self) -> Bucket:
        if not self._bus.connected:
            raise BusUnavailable("not connected")
        return self._broker.buckets[self._bucket]
