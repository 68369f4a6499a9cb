"""The data plane of a performance run: each worker has a card that sends and one that receives, and
transfers share them. Where all workers share the cores of one host, what a pool node copies is work
for these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.priced_engine import SharedHost
from loadgen.sim.fleet.sharing import Card, FairShare
from loadgen.sim.flight import ReadOutcome
from loadgen.sim.plane import Ask, PageFabric, PageHost
from loadgen.sim.scene import Scene
from shared.errors import Code
from shared.ids import PageId, WorkerId
from shared.runtime.measured import Measured
from shared.wire.workers import LinkSample


@dataclass(slots=True)
class Moved:
    """What went over all links."""

    reads: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    """From the request of a read to its end, summed."""
    by_owner: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes by the role that gave them."""


class LinkFabric(PageFabric):
    """Keeps the contract of `Plane.read`; nothing is ever lost."""

    def __init__(self, scene: Scene, design: Design, host: SharedHost | None = None) -> None:
        super().__init__(scene)
        self.moved = Moved()
        self._link, self._pool_link = design.link, design.kvpool_link or design.link
        self._host = host
        self._share = FairShare(scene.heap)
        self._cards: dict[tuple[str, str], Card] = {}
        self._measured: defaultdict[str, Measured] = defaultdict(Measured)

    def measured(self, reader: str) -> tuple[LinkSample, ...]:
        """The newest reads, each as if it had had the reader's card for itself."""
        return self._measured[reader].take()[1]

    def inbound(self, host: PageHost) -> set[PageId]:
        return set()

    def read(self, reader: PageHost, ask: Ask, done: Callable[[ReadOutcome], None]) -> None:
        owner = self._hosts[ask.address]
        asked_s = self._scene.heap.now_s
        arrives = owner.guarded(lambda: self._serve(reader, owner, ask, asked_s, done))
        way_s = 0.0 if self._copying(reader) else self._of(reader).setup_s / 2
        self._scene.heap.after(way_s, arrives)

    def _serve(
        self,
        reader: PageHost,
        owner: PageHost,
        ask: Ask,
        asked_s: float,
        done: Callable[[ReadOutcome], None],
    ) -> None:
        heap, link = self._scene.heap, self._of(reader)
        read = owner.open_read(ask.ticket, [(page.source, page.generation) for page in ask.reads])
        if read is None:
            stale = reader.guarded(lambda: done(ReadOutcome(Code.STALE)))
            heap.after(link.setup_s / 2, stale)
            return
        size_bytes = len(ask.reads) * owner.memory.page_bytes

        def close() -> None:
            owner.close_read(read)

        def landed() -> None:
            self._measure(reader.name, owner.name, size_bytes, heap.now_s - asked_s)
            done(ReadOutcome(None, True, size_bytes))

        self.moved.reads += 1
        self.moved.size_bytes += size_bytes
        self.moved.by_owner[_role(owner)] += size_bytes
        ends = owner.guarded(close), reader.guarded(landed)
        host = self._copying(reader)
        if host is not None:
            host.copy(heap, link.setup_s + size_bytes / link.bytes_per_s, lambda: _each(ends))
            return
        self._share.begin(
            self._card("sends", owner),
            self._card("receives", reader),
            size_bytes,
            lambda: heap.after(link.setup_s / 2, lambda: _each(ends)),
        )

    def _measure(self, reader: str, owner: str, size_bytes: int, seconds: float) -> None:
        self.moved.seconds += seconds
        now = self._scene.heap.now_s
        self._measured[reader].read(WorkerId(owner), size_bytes, seconds, now)

    def _card(self, way: str, host: PageHost) -> Card:
        card = self._cards.get((way, host.name))
        if card is None:
            card = self._cards[way, host.name] = Card(self._of(host).bytes_per_s)
        return card

    def _copying(self, reader: PageHost) -> SharedHost | None:
        """The host for whose cores its reads are work."""
        return self._host if _role(reader) == "kvpool" else None

    def _of(self, reader: PageHost) -> Link:
        return self._pool_link if _role(reader) == "kvpool" else self._link

    def forget(self, reader: PageHost, address: str) -> None:
        """No link is ever closed."""


def _each(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _role(host: PageHost) -> str:
    return host.name.partition("-")[0]
