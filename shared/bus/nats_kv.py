"""A JetStream bucket with compare-and-set, behind our KeyValue protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.errors import (
    BadRequestError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    ServiceUnavailableError,
)
from nats.js.kv import KeyValue as Bucket

from shared.errors import BusError, BusTimeout, BusUnavailable

T = TypeVar("T")
TIMEOUT_S: Final = 3.0


class Connection(Protocol):
    """What the bucket needs of its bus."""

    @property
    def connected(self) -> bool: ...

    @property
    def client(self) -> Client: ...


class NatsKeyValue:
    """Every call has a deadline of three seconds and fails at once while disconnected. After a
    BusTimeout a write may or may not have happened: read again. After a failure the bucket is
    looked for again, and made when it is gone: the server may have lost its store."""

    def __init__(self, bus: Connection, bucket: str) -> None:
        self._bus = bus
        self._name = bucket
        self._opened: tuple[Client, Bucket] | None = None

    async def open(self) -> None:
        """Make the bucket unless it is there."""
        await self._mapped(self._bucket)

    async def get(self, key: str) -> tuple[bytes, int] | None:
        async def read() -> tuple[bytes, int] | None:
            try:
                entry = await (await self._bucket()).get(key)
            except KeyNotFoundError:
                return None
            return entry.value or b"", entry.revision or 0

        return await self._mapped(read)

    async def put_if(self, key: str, value: bytes, revision: int) -> int | None:
        async def write() -> int | None:
            try:
                return await (await self._bucket()).update(key, value, last=revision)
            except KeyWrongLastSequenceError:
                return None

        return await self._mapped(write)

    async def _bucket(self) -> Bucket:
        """The bucket on the present connection."""
        client = self._bus.client
        if self._opened is None or self._opened[0] is not client:
            stream = client.jetstream(timeout=TIMEOUT_S)
            try:
                bucket = await stream.create_key_value(bucket=self._name, history=1)
            except BadRequestError:  # it exists with other settings
                bucket = await stream.key_value(self._name)
            self._opened = (client, bucket)
        return self._opened[1]

    async def _mapped(self, call: Callable[[], Awaitable[T]]) -> T:
        if not self._bus.connected:
            raise BusUnavailable("not connected")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await call()
        except TimeoutError:
            self._opened = None
            raise BusTimeout("the key-value store did not answer in time") from None
        except (NoRespondersError, ServiceUnavailableError, OSError) as error:
            self._opened = None
            raise BusUnavailable("the key-value store is not available") from error
        except NatsError as error:
            self._opened = None
            raise BusError(f"key-value store: {type(error).__name__}") from error
