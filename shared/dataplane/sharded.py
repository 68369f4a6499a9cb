"""The data plane of a worker whose pages are split over tensor-parallel ranks: one lane per rank.

    address   lane 0's | lane 1's | …        what a peer's `read` is given, and so its rank count
    equal counts      each lane reads its counterpart: the pieces are the same
    unequal counts    the owner's pieces land in staging pages of the owner's geometry; from there
                      the heads that are ours are copied into our pages

A worker of one rank has one lane and is spoken to as if this were not here. Knows no transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from shared.clock import Clock, SystemClock
from shared.dataplane.plane import PageMemory, PageRead, Plane, ReadGuard, ReadReport
from shared.errors import Code, StartupError, TransferError
from shared.ids import Generation, PageId
from shared.wire.requests import BETWEEN_RANKS

MAX_PARTS: Final = 64
_STAGED_PAGES: Final = 16
"""Pages per rank that are copied at once; the event loop waits for the copy."""


@runtime_checkable
class StagedMemory(PageMemory, Protocol):
    """Pages in another worker's geometry, on their way into ours."""

    def adopt(self, part: int, moves: Sequence[tuple[PageId, PageId]]) -> None:
        """Copy what rank `part` of the owner holds into our pages: (staged, own) pairs."""
        ...


@runtime_checkable
class SplitMemory(PageMemory, Protocol):
    """Pages in one or more pieces, one per rank."""

    @property
    def parts(self) -> Sequence[PageMemory]: ...

    def staging(self, parts: int, pages: int) -> StagedMemory:
        """For pieces as one of `parts` ranks holds them. Raises TransferError."""
        ...


class Closed:
    """Implements ReadGuard: nobody reads staging pages."""

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        return None

    def close_read(self, read: int) -> None:
        """There is none."""


class ShardedPlane:
    """Implements `Plane` over one plane per rank. Lives on one event loop."""

    def __init__(self, open_lane: Callable[[], Plane], clock: Clock | None = None) -> None:
        self._open_lane = open_lane
        self._clock = clock or SystemClock()
        self._lanes = [open_lane()]
        self._memory: SplitMemory | None = None
        self._content = ""
        self._bridges: dict[int, _Bridge] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return BETWEEN_RANKS.join(lane.address for lane in self._lanes)

    @property
    def transport(self) -> str:
        return self._lanes[0].transport

    def register(self, memory: PageMemory, guard: ReadGuard, content: str = "") -> None:
        self._content = content
        if isinstance(memory, SplitMemory):
            self._memory = memory
            pieces = memory.parts
        else:
            pieces = (memory,)
        self._lanes += [self._open_lane() for _ in pieces[1:]]
        for lane, piece in zip(self._lanes, pieces, strict=True):
            lane.register(piece, guard, _content(content, len(pieces)))

    async def start(self) -> None:
        for lane in self._lanes:
            await lane.start()

    def warm(self, peer: str) -> None:
        parts = peer.split(BETWEEN_RANKS)
        bridge = self._bridges.get(len(parts))
        if len(parts) == len(self._lanes):
            for lane, part in zip(self._lanes, parts, strict=True):
                lane.warm(part)
        elif bridge is not None:
            bridge.warm(parts)

    async def read(
        self, peer: str, ticket: str, pages: Sequence[PageRead], timeout_s: float
    ) -> ReadReport:
        parts = peer.split(BETWEEN_RANKS)
        if len(parts) == len(self._lanes) == 1:
            return await self._lanes[0].read(peer, ticket, pages, timeout_s)
        if len(parts) > MAX_PARTS:
            raise TransferError("not a plane address", Code.INVALID_PARAMETER)
        if len(parts) == len(self._lanes):
            reads = [
                lane.read(part, ticket, pages, timeout_s)
                for lane, part in zip(self._lanes, parts, strict=True)
            ]
            return _together(await asyncio.gather(*reads, return_exceptions=True))
        return await self._bridged(parts, ticket, pages, timeout_s)

    async def forget(self, peer: str) -> None:
        for part in peer.split(BETWEEN_RANKS):
            for lane in (*self._lanes, *(bridge.lane for bridge in self._bridges.values())):
                await lane.forget(part)

    async def close(self) -> None:
        bridges, self._bridges = list(self._bridges.values()), {}
        for lane in (*self._lanes, *(bridge.lane for bridge in bridges)):
            await lane.close()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _bridged(
        self, parts: Sequence[str], ticket: str, pages: Sequence[PageRead], timeout_s: float
    ) -> ReadReport:
        """Our pages are written between two awaits only, so nothing ever lands late in them."""
        due_s = self._clock.now() + timeout_s
        bridge = self._bridge(len(parts))
        try:
            async with asyncio.timeout(timeout_s):
                await bridge.lock.acquire()
        except TimeoutError as error:
            raise TransferError("other reads took too long") from error
        reports: list[ReadReport] = []
        try:
            await bridge.open()
            for first in range(0, len(pages), _STAGED_PAGES):
                some = pages[first : first + _STAGED_PAGES]
                left_s = max(0.001, due_s - self._clock.now())
                reports.append(await bridge.pull(parts, ticket, some, left_s))
        except asyncio.CancelledError:
            self._drop(bridge)
            raise
        except TransferError as error:
            if not error.settled:
                self._drop(bridge)
            raise TransferError(error.message, error.code) from error
        finally:
            bridge.lock.release()
        return _in_turn(reports, len(pages), self.transport)

    def _bridge(self, parts: int) -> _Bridge:
        bridge = self._bridges.get(parts)
        if bridge is None:
            if self._memory is None:
                raise TransferError(
                    "these pages cannot be split over ranks", Code.INCOMPATIBLE_WORKERS
                )
            staged = self._memory.staging(parts, parts * _STAGED_PAGES)
            bridge = self._bridges[parts] = _Bridge(self._open_lane(), staged)
            bridge.lane.register(staged, Closed(), _content(self._content, parts))
        return bridge

    def _drop(self, bridge: _Bridge) -> None:
        """Bytes may still land in its staging pages: nobody looks at those again."""
        for parts, known in list(self._bridges.items()):
            if known is bridge:
                del self._bridges[parts]
        task = asyncio.get_running_loop().create_task(bridge.lane.close(), name="bridge-close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Bridge:
    """Reads of workers of one other number of ranks, one at a time."""

    def __init__(self, lane: Plane, staged: StagedMemory) -> None:
        self.lane = lane
        self.lock = asyncio.Lock()
        self._started = False
        self._staged = staged

    async def open(self) -> None:
        """Once. Raises TransferError."""
        if not self._started:
            try:
                await self.lane.start()
            except StartupError as error:
                raise TransferError(error.message) from error
            self._started = True

    def warm(self, parts: Sequence[str]) -> None:
        for part in parts if self._started else ():
            self.lane.warm(part)

    async def pull(
        self, parts: Sequence[str], ticket: str, pages: Sequence[PageRead], timeout_s: float
    ) -> ReadReport:
        """All pieces of up to `_STAGED_PAGES` pages into staging, then into ours."""
        reads, moves = [], []
        for part, peer in enumerate(parts):
            slots = [PageId(part * _STAGED_PAGES + index) for index in range(len(pages))]
            wanted = [
                PageRead(page.source, page.generation, slot)
                for page, slot in zip(pages, slots, strict=True)
            ]
            reads.append(self.lane.read(peer, ticket, wanted, timeout_s))
            moves.append([(slot, page.target) for page, slot in zip(pages, slots, strict=True)])
        report = _together(await asyncio.gather(*reads, return_exceptions=True))
        for part, own in enumerate(moves):
            self._staged.adopt(part, own)
        return report


def _content(content: str, parts: int) -> str:
    """Pieces of another geometry are other content; of one rank, as if there were no ranks."""
    return content if parts == 1 or not content else f"{content} in {parts}"


def _together(outcomes: Sequence[ReadReport | BaseException]) -> ReadReport:
    """One report for reads at the same time. Raises the failure that matters most: one after
    which bytes can still land, else the first."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failures:
        late = [one for one in failures if isinstance(one, TransferError) and not one.settled]
        raise (late or failures)[0]
    reports = [outcome for outcome in outcomes if isinstance(outcome, ReadReport)]
    return ReadReport(
        reports[0].pages,
        sum(report.bytes for report in reports),
        max(report.seconds for report in reports),
        reports[0].transport,
        sum(report.runs for report in reports),
    )


def _in_turn(reports: Sequence[ReadReport], pages: int, transport: str) -> ReadReport:
    return ReadReport(
        pages,
        sum(report.bytes for report in reports),
        sum(report.seconds for report in reports),
        reports[0].transport if reports else transport,
        sum(report.runs for report in reports),
    )
