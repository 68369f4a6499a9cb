"""The control-plane protocol: what services may ask of a message bus.

At most once, in no order across subjects, bounded everywhere. Facts that matter are sent until
acknowledged by the layer above; the bus itself never retries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from shared.bus.headers import Headers
from shared.wire.codec import Message


@dataclass(frozen=True, slots=True)
class Delivery:
    """One decoded message with its headers, as a handler sees it."""

    subject: str
    message: Message
    headers: Headers


Handler = Callable[[Delivery], Awaitable[Message | None]]
"""Returns the reply for a request (None: no reply). A raised BatonError becomes `Refused`.
Handlers of one subscription run one after the other unless `concurrency` > 1."""


class Subscription(Protocol):
    async def close(self) -> None:
        """Stop receiving; returns after running handlers have ended."""
        ...


class Bus(Protocol):
    """A connection with one role's credential."""

    @property
    def connected(self) -> bool: ...

    @property
    def max_payload_bytes(self) -> int: ...

    async def publish(self, subject: str, message: Message, headers: Headers) -> None:
        """Fire and forget. Raises PayloadTooLarge; BusUnavailable while disconnected."""
        ...

    async def request(
        self, subject: str, message: Message, headers: Headers, timeout_s: float
    ) -> Message:
        """Ask and await the reply. Raises BusUnavailable (at once while disconnected),
        NoResponder, BusTimeout, PayloadTooLarge, WireError; a `Refused` reply is returned."""
        ...

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", concurrency: int = 64
    ) -> Subscription:
        """Deliver messages to `handler`. Undecodable ones are counted and answered `Refused`."""
        ...

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Called after the connection came back: whoever keeps derived state must resync."""
        ...

    async def watch(self, gone: Callable[[str, str], None]) -> None:
        """Tell `gone` the role and the name of each client whose connection ends from now on, as
        the server sees it: it may come back the next moment. Raises BusError when this role may
        not know, BusUnavailable while disconnected."""
        ...

    async def close(self) -> None: ...


class KeyValue(Protocol):
    """A small bucket with compare-and-set: epochs and the leader's lease live here."""

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """Value and revision, or None."""
        ...

    async def put_if(self, key: str, value: bytes, revision: int) -> int | None:
        """Write if the key is at `revision` (0: does not exist). The new revision, or None
        when somebody else was faster."""
        ...
