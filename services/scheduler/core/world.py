"""All that the scheduler knows when a request comes; changed by placements and by what is heard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from services.scheduler.core.cards import Backlog, Cards, Flow, backlog
from services.scheduler.core.cluster import Cluster, Worker
from services.scheduler.core.flights import Flights
from services.scheduler.core.models.learned import Learned
from services.scheduler.core.pace import Pace, Paces
from services.scheduler.core.prefixes import PrefixIndex
from services.scheduler.core.rates import Rates
from services.scheduler.core.sessions import Sessions
from services.scheduler.core.trust import Trust
from shared.ids import WorkerId
from shared.wire.workers import Heartbeat

_WINDOW_S: Final = 30.0
_PACE_S: Final = 10.0
_BURST_S: Final = 4.0
_LATELY_S: Final = 20.0


@dataclass(slots=True)
class World:
    """All that is known of the cluster when a request comes."""

    cluster: Cluster
    index: PrefixIndex
    learned: Learned = field(default_factory=Learned)
    trust: Trust = field(default_factory=Trust)
    flights: Flights = field(default_factory=Flights)
    sessions: Sessions = field(default_factory=Sessions)
    pace: Pace = field(default_factory=lambda: Pace(_PACE_S))
    """Requests that compute in the pool of prefill workers ..."""
    burst: Pace = field(default_factory=lambda: Pace(_BURST_S))
    """... and those of this very moment."""
    paces: Paces = field(default_factory=lambda: Paces(_LATELY_S))
    """The same by worker."""
    cards: Cards = field(default_factory=Cards)
    link_work: Rates[WorkerId] = field(default_factory=lambda: Rates(_WINDOW_S))
    """Bytes of transfers placed, per second and reader."""
    tenants: Rates[str] = field(default_factory=lambda: Rates(_WINDOW_S))
    """Seconds of work placed, per second and tenant."""

    def receiving(self, reader: WorkerId, now: float) -> Backlog:
        """What its card has to receive, at the speed that is believed."""
        return backlog(self.cards.to(reader), self.learned.links.of(reader, now).bytes_per_s, now)

    def sending(self, owner: WorkerId, now: float) -> Backlog:
        """What its card has to send."""
        return backlog(self.cards.of(owner), self.learned.links.of(owner, now).bytes_per_s, now)

    def reads(self, beat: Heartbeat, now: float) -> None:
        """A worker told what it has still to read."""
        load, size_bytes = beat.load, float(beat.page_bytes)
        if not load.reading and not self.cards.to(beat.worker):
            return
        left = [(one.peer, one.pages * size_bytes) for one in load.reading if one.pages]
        owners = self.cards.reported(beat.worker, load.placement_sequence, left, now)
        self._show((beat.worker, *owners), now)

    def will_read(
        self, reader: Worker, owner: Worker, sequence: int, size_bytes: int, now: float
    ) -> None:
        """A placement means that one reads from the other."""
        to, source = reader.report.worker, owner.report.worker
        self.link_work.add(to, size_bytes, now)
        self.cards.placed(Flow(to, source, float(size_bytes), now, sequence))
        self._show((to, source), now)

    def _show(self, names: Iterable[WorkerId], now: float) -> None:
        for name in names:
            worker = self.cluster.get(name)
            if worker is not None:
                received_s = now + self.receiving(name, now).seconds
                sent_s = now + self.sending(name, now).seconds
                self.cluster.columns.transfers(worker.row, received_s, sent_s)
