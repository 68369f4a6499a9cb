"""The server's part of the in-memory bus: interest, routing, buckets, and bad weather.

Misbehaviour is drawn from the seeded generator passed in; each kind is counted in `fired`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from shared.bus.receiver import Arrival, Receiver
from shared.wire import codec
from shared.wire.subjects import CLIENT_GONE


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances per delivery (0..1), and the longest delay. Order within one subject of one sender
    is kept, as NATS keeps it; across subjects it is not."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.0


@dataclass(slots=True)
class Bucket:
    """Keys with revisions; a revision counts the writes of the whole bucket, as in JetStream."""

    revision: int = 0
    entries: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    _history: list[dict[str, tuple[bytes, int]]] = field(default_factory=list)

    def put_if(self, key: str, value: bytes, revision: int) -> int | None:
        _, present = self.entries.get(key, (b"", 0))
        if present != revision:
            return None
        self._history.append(dict(self.entries))
        del self._history[:-64]
        self.revision += 1
        self.entries[key] = (value, self.revision)
        return self.revision

    def lose(self, writes: int) -> None:
        for _ in range(min(writes, len(self._history))):
            self.entries = self._history.pop()
            self.revision -= 1


class Client(Protocol):
    """What the broker needs of a connected client."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    async def reply(self, asker: Client, token: int, data: bytes) -> None: ...

    def resolve(self, token: int, data: bytes) -> None: ...

    def disconnected(self) -> None: ...

    def gone(self, role: str, name: str) -> None: ...

    def reconnected(self) -> None: ...


@dataclass(eq=False, slots=True)
class Interest:
    """One subscription of one client."""

    owner: Client
    pattern: str
    queue: str
    receiver: Receiver


class MemoryBroker:
    """The server's part: interest, routing, buckets, and bad weather. `fired` counts each kind of
    misbehaviour, so a test can prove that it happened."""

    def __init__(
        self,
        chance: random.Random | None = None,
        weather: Weather = Weather(),
        max_payload_bytes: int = codec.MAX_BYTES,
    ) -> None:
        self.weather = weather
        self.max_payload_bytes = max_payload_bytes
        self.fired: Counter[str] = Counter()
        self.up = True
        self.clients: list[Client] = []
        self.buckets: dict[str, Bucket] = {}
        self._chance = chance or random.Random(0)
        self.interests: list[Interest] = []
        self._cuts: set[tuple[str, str]] = set()
        self._era = 0
        self._not_before: dict[tuple[str, str, str], float] = {}

    def cut(self, source: str, target: str) -> None:
        """From now on nothing from client `source` reaches client `target` (one way)."""
        self._cuts.add((source, target))

    def heal(self) -> None:
        """End all cuts and the bad weather."""
        self._cuts.clear()
        self.weather = Weather()

    def outage(self) -> None:
        """The server is gone: everybody is disconnected, messages under way are lost."""
        self.up = False
        self._era += 1
        self.fired["outage"] += 1
        for client in self.clients:
            client.disconnected()

    def restore(self) -> None:
        """The server is back: subscriptions return, missed messages do not."""
        self.up = True
        for client in list(self.clients):
            client.reconnected()

    def left(self, client: Client) -> None:
        """Its connection ended: those who watch are told."""
        self.clients.remove(client)
        for other in self.clients:
            tell = partial(other.gone, client.role, client.name)
            self.carry(client, other, CLIENT_GONE, tell)

    def lose_writes(self, bucket: str, writes: int = 1) -> None:
        """Forget the newest acknowledged writes of a bucket, as a power cut may."""
        self.buckets[bucket].lose(writes)
        self.fired["lost_write"] += writes

    def deliver_raw(self, subject: str, data: bytes) -> None:
        """Send bytes that no adapter would: for tests of what receivers refuse."""
        for interest in self._chosen(subject):
            interest.receiver.offer(Arrival(subject, data, None, None))

    def send(
        self, source: Client, subject: str, data: bytes, fields: dict[str, str], token: int
    ) -> int:
        """Route to one member per queue group and to all others. How many were interested."""
        chosen = self._chosen(subject)
        for interest in chosen:
            owner = interest.owner
            reply = partial(owner.reply, source, token) if token else None
            offer = partial(interest.receiver.offer, Arrival(subject, data, fields, reply))
            self.carry(source, owner, subject, offer)
        return len(chosen)

    def _chosen(self, subject: str) -> list[Interest]:
        groups: dict[tuple[str, str], list[Interest]] = {}
        chosen: list[Interest] = []
        for interest in self.interests:
            if not matches(interest.pattern, subject):
                continue
            if interest.queue:
                groups.setdefault((interest.pattern, interest.queue), []).append(interest)
            else:
                chosen.append(interest)
        return chosen + [self._chance.choice(members) for members in groups.values()]

    def carry(self, source: Client, target: Client, lane: str, deliver: Callable[[], None]) -> None:
        """Deliver later, through the weather; never inside the sender's turn."""
        if (source.name, target.name) in self._cuts:
            self.fired["cut"] += 1
            return
        if self._happens("drop", self.weather.drop):
            return
        copies = 2 if self._happens("duplicate", self.weather.duplicate) else 1
        for _ in range(copies):
            self._schedule(
                (source.name, target.name, lane), partial(self._land, self._era, deliver)
            )

    def _schedule(self, lane: tuple[str, str, str], land: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        moment = self._not_before.get(lane, now)
        if self.weather.delay_s:
            self.fired["delay"] += 1
            moment = max(moment, now + self._chance.random() * self.weather.delay_s)
        if moment <= now:
            self._not_before.pop(lane, None)
            loop.call_soon(land)
        else:
            self._not_before[lane] = moment + 1e-6
            loop.call_at(moment, land)

    def _land(self, era: int, deliver: Callable[[], None]) -> None:
        if era == self._era:
            deliver()

    def _happens(self, fault: str, chance: float) -> bool:
        happened = chance > 0 and self._chance.random() < chance
        self.fired[fault] += happened
        return happened


def matches(pattern: str, subject: str) -> bool:
    """NATS wildcards: '*' is one token, a final '>' one or more. A pattern may be the subject."""
    wanted, given = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index >= len(given) or token not in ("*", given[index]):
            return False
    return len(wanted) == len(given)
