"""The simulated data plane: pages move in pieces, over time, between real memories.

Keeps the contract of `Plane.read` and is otherwise as nasty as it may be: pieces come late, torn,
flipped, out of order, after the reader gave up, and ends are reported twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from loadgen.sim import costs
from loadgen.sim.flight import Flight, Piece, ReadOutcome
from loadgen.sim.scene import Scene
from shared.dataplane.plane import PageMemory, PageRead
from shared.errors import Code
from shared.ids import Generation, PageId
from shared.kv.cache import PageCache
from shared.wire.workers import LinkSample

_LATE_ASK_S: Final = 1.4
_TWICE_S: Final = 0.4
_STRAY_S: Final = 3.0
_SILENT_DEATHS: Final = 0.3
"""Share of dead owners whose links just fall silent."""


class PageHost(Protocol):
    """What the plane needs of a process with pages."""

    name: str
    alive: bool
    paused: bool

    @property
    def address(self) -> str: ...
    @property
    def memory(self) -> PageMemory: ...
    @property
    def cache(self) -> PageCache: ...
    def enter(self, call: Callable[[], None]) -> None: ...
    def guarded(self, call: Callable[[], None]) -> Callable[[], None]: ...
    def later(self, local_s: float, call: Callable[[], None]) -> None: ...
    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None: ...
    def close_read(self, read: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One read as its reader wants it."""

    address: str
    ticket: str
    reads: tuple[PageRead, ...]
    timeout_s: float


class PageFabric:
    """All planes of one run and the reads between them."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._hosts: dict[str, PageHost] = {}
        self._flights: dict[int, Flight] = {}
        self._last = 0

    def join(self, host: PageHost) -> None:
        self._hosts[host.address] = host

    def measured(self, reader: str) -> tuple[LinkSample, ...]:
        """What this reader measured since it was last asked; only performance runs do."""
        return ()

    def inbound(self, host: PageHost) -> set[PageId]:
        """Pages of this host that a read may still write."""
        return {
            page
            for flight in self._flights.values()
            if flight.reader is host and flight.linked
            for page in flight.pending_targets()
        }

    def read(self, reader: PageHost, ask: Ask, done: Callable[[ReadOutcome], None]) -> None:
        """Pull pages; `done` hears how it ended, never before this returns."""
        self._last += 1
        luck = random.Random(f"{self._scene.case.seed} {reader.name} {ask.ticket} {ask.reads}")
        flight = Flight(self._last, reader, ask.address, ask.ticket, ask.reads, done, luck)
        self._flights[flight.number] = flight
        flight.generations = {r.target: reader.cache.look(r.target).generation for r in ask.reads}
        reader.later(ask.timeout_s, lambda: self._timed_out(flight))
        if self._cut(reader, "up") or self._cut_at(ask.address, "down"):
            return
        owner = self._hosts.get(ask.address)
        delay_s = costs.message_s(flight.chance.random())
        late = self._scene.weather.hit("page_late", reader.name)
        if late is not None:
            delay_s += min(late.amount, _LATE_ASK_S) * flight.chance.random()
        if owner is None or not owner.alive:
            if owner is None or flight.chance.random() >= _SILENT_DEATHS:
                self._scene.heap.after(delay_s, reader.guarded(lambda: self._broken(flight)))
            return
        self._scene.heap.after(delay_s, owner.guarded(lambda: self._grant(flight, owner)))

    def forget(self, reader: PageHost, address: str) -> None:
        """The reader closes its link to a peer that is known to be dead."""
        self._close_link(reader, address)

    def died(self, host: PageHost) -> None:
        """Power cut: its own reads land nowhere, those of its pages end or fall silent."""
        for flight in tuple(self._flights.values()):
            if flight.reader is host:
                self._unlink(flight)
            elif flight.owner is host:
                flight.owner = None
                flight.linked = False
                if flight.chance.random() >= _SILENT_DEATHS:
                    reader = flight.reader
                    self._scene.heap.after(0.001, reader.guarded(_call(self._broken, flight)))

    # -- the owner's side ------------------------------------------------------------------

    def _grant(self, flight: Flight, owner: PageHost) -> None:
        if not flight.linked:
            return
        pages = [(read.source, read.generation) for read in flight.reads]
        flight.read = owner.open_read(flight.ticket, pages)
        if flight.read is None:
            self._count_refusal(flight, owner)
            refused = ReadOutcome(Code.STALE)
            back = flight.reader.guarded(lambda: self._end(flight, refused))
            self._scene.heap.after(costs.message_s(flight.chance.random()), back)
            return
        flight.owner = owner
        for read in flight.reads:
            story = f"{flight.story}, page {read.source}"
            self._scene.judge.serving(owner.cache, read.source, read.generation, story)
            flight.prints[read.source] = flight.fingerprint(read.source)
        self._send_all(flight, owner)

    def _count_refusal(self, flight: Flight, owner: PageHost) -> None:
        """What the reader would have met if the owner had not looked."""
        looks = [owner.cache.look(read.source).generation for read in flight.reads]
        wanted = [read.generation for read in flight.reads]
        self._scene.fired["read_of_reused_page"] += looks != wanted
        self._scene.fired["read_after_lease"] += looks == wanted

    def _send_all(self, flight: Flight, owner: PageHost) -> None:
        """Schedule the pieces, one after the other as a link carries them."""
        weather, half = self._scene.weather, owner.memory.page_bytes // 2
        pieces = [Piece(read, at * half, half) for read in flight.reads for at in (0, 1)]
        flight.left = len(pieces)
        slow = weather.hit("slow_link", owner.name)
        late = weather.hit("page_late", flight.reader.name)
        if late is not None:
            flight.chance.shuffle(pieces)
        torn = weather.hit("page_torn", flight.reader.name)
        breaks_at = None if torn is None else flight.chance.randrange(len(pieces))
        when_s = self._scene.heap.now_s
        for index, piece in enumerate(pieces):
            when_s += costs.piece_s(flight.chance) * (1.0 if slow is None else slow.amount)
            extra_s = 0.0 if late is None else late.amount * flight.chance.random()
            if index == breaks_at and flight.chance.random() < 0.5:
                tear = flight.reader.guarded(_call(self._broken, flight))
                self._scene.heap.at(when_s, tear)
            piece.missing = index == breaks_at
            self._scene.heap.at(when_s + extra_s, owner.guarded(_call(self._send, flight, piece)))

    def _send(self, flight: Flight, piece: Piece) -> None:
        """The owner's part of a piece: its bytes as they are at this instant."""
        owner = flight.owner
        if owner is None or not flight.linked or flight.read is None:
            return
        source = piece.read.source
        judge, story = self._scene.judge, f"{flight.story}, page {source}"
        judge.serving(owner.cache, source, piece.read.generation, story)
        judge.unchanged(flight.prints[source], flight.fingerprint(source), story)
        if self._cut(owner, "up") or self._cut(flight.reader, "down"):
            return
        memory = memoryview(owner.memory.run(source, 1)).cast("B")
        content = bytes(memory[piece.offset : piece.offset + piece.size])
        delay_s = costs.message_s(flight.chance.random())
        self._scene.heap.after(delay_s, lambda: self._land(flight, piece, content))

    def _settle_owner(self, flight: Flight, delay_s: float) -> None:
        """The owner learns that nothing is read any more."""
        owner, read = flight.owner, flight.read
        flight.read = None
        if owner is not None and read is not None:
            self._scene.heap.after(delay_s, owner.guarded(lambda: owner.close_read(read)))

    # -- the reader's side -----------------------------------------------------------------

    def _land(self, flight: Flight, piece: Piece, content: bytes) -> None:
        """Bytes arrive, whether or not the reader's process is looking."""
        reader, target = flight.reader, piece.read.target
        if not flight.linked or not reader.alive:
            return
        if not piece.missing:
            self._scene.judge.landing(
                reader.cache, target, flight.generations[target], flight.story
            )
            if self._scene.weather.hit("bit_flip_wire", reader.name) is not None:
                content = _flipped(content, flight.chance)
            memory = memoryview(reader.memory.run(target, 1)).cast("B")
            memory[piece.offset : piece.offset + piece.size] = content
        piece.landed = True
        flight.left -= 1
        if flight.left == 0 and not flight.reported:
            size = len(flight.reads) * reader.memory.page_bytes
            finished = ReadOutcome(None, True, size)
            self._scene.heap.after(0.0, reader.guarded(lambda: self._end(flight, finished)))

    def _timed_out(self, flight: Flight) -> None:
        """The reader gives up: its link is closed, or cannot be."""
        if flight.reported:
            return
        moving = flight.read is not None and flight.linked
        if moving and self._scene.weather.hit("page_unsettled", flight.reader.name):
            self._report(flight, ReadOutcome(Code.TRANSFER_FAILED, settled=False))
            stray_s = _STRAY_S * flight.chance.random()
            self._scene.heap.after(stray_s, lambda: self._unlink(flight))
            return
        flight.failure = Code.TRANSFER_FAILED
        self._close_link(flight.reader, flight.address)

    def _broken(self, flight: Flight) -> None:
        """The link broke: known at once, nothing lands any more."""
        self._close_link(flight.reader, flight.address)

    def _close_link(self, reader: PageHost, address: str) -> None:
        """All reads over this link end."""
        for flight in tuple(self._flights.values()):
            if flight.reader is reader and flight.address == address:
                self._unlink(flight)
                self._end(flight, ReadOutcome(flight.failure))

    def _end(self, flight: Flight, outcome: ReadOutcome) -> None:
        """The reader's read returns."""
        self._unlink(flight)
        self._report(flight, outcome)

    def _report(self, flight: Flight, outcome: ReadOutcome) -> None:
        if flight.reported:
            return
        flight.reported = True
        flight.done(outcome)
        if self._scene.weather.hit("report_twice", flight.reader.name) is not None:
            again = flight.reader.guarded(lambda: flight.done(outcome))
            self._scene.heap.after(_TWICE_S * flight.chance.random(), again)

    def _unlink(self, flight: Flight) -> None:
        """Nothing of this read lands from now on."""
        flight.linked = False
        self._flights.pop(flight.number, None)
        gone = not flight.reader.alive and flight.chance.random() < _SILENT_DEATHS
        self._settle_owner(
            flight, costs.KEEPALIVE_S if gone else costs.message_s(flight.chance.random())
        )

    def _cut(self, host: PageHost, way: str) -> bool:
        return self._scene.weather.hit("cut_plane", host.name, way) is not None

    def _cut_at(self, address: str, way: str) -> bool:
        host = self._hosts.get(address)
        return host is not None and self._cut(host, way)


def _call(function: Callable[..., None], *arguments: object) -> Callable[[], None]:
    """Bound now, called later: loops must not share their variable."""
    return lambda: function(*arguments)


def _flipped(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content) * 8)
    spoilt = bytearray(content)
    spoilt[at // 8] ^= 1 << at % 8
    return bytes(spoilt)
