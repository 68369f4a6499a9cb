"""One pool node: arena, plane, membership and machine put together, and taken apart again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.kvpool.arena import HostArena
from services.kvpool.config import KvPoolConfig
from services.kvpool.core.machine import PoolMachine
from services.kvpool.core.state import PoolLimits
from services.kvpool.metrics import PoolMetrics, PoolTransfers
from services.kvpool.pulls import Puller
from services.kvpool.shell import Shell
from shared.checkpoint import open_checkpoint
from shared.checkpoint.geometry import page_layout
from shared.dataplane.plane import Plane
from shared.dataplane.selection import open_plane
from shared.errors import CheckpointError, StartupError
from shared.ids import BlockHash, Generation, PageId
from shared.kv.cache import PageCache
from shared.kv.layout import PageLayout
from shared.runtime.membership import NO_COST, Membership, Traits
from shared.runtime.service import Scope
from shared.wire.requests import WorkerRef
from shared.wire.workers import CostModel, WorkerLoad


class KvPoolApp:
    """`run` joins, serves until drained, and leaves."""

    role = "kvpool"

    def __init__(self, scope: Scope, config: KvPoolConfig, plane: Plane | None = None) -> None:
        """`plane` replaces the chosen plane in tests and in the cluster of one process."""
        self.shell: Shell | None = None
        self._scope = scope
        self._config = config
        self._plane: Plane = plane or open_plane(config, scope.clock, PoolTransfers(scope.metrics))

    async def run(self, scope: Scope) -> None:
        """Serve until drained. Raises StartupError."""
        layout, model_digest = await asyncio.to_thread(_model, self._config)
        arena = HostArena(self._config.host_bytes, layout.page_bytes)
        self._plane.register(arena, _Guard(self), f"{model_digest} {layout.digest}")
        await self._plane.start()
        try:
            await self._serve(scope, arena, layout, model_digest)
        finally:
            await self._plane.close()

    def ready(self) -> bool:
        shell = self.shell
        return shell is not None and not shell.draining and self._scope.bus.connected

    def accounting(self) -> dict[str, object]:
        """What somebody holds right now, all zero at rest; then what is kept and was counted."""
        if self.shell is None:
            return {"held_pages": 0, "leases": 0, "requests": 0}
        machine = self.shell.machine
        counts = machine.cache.counts()
        return {
            "held_pages": counts.referenced + counts.leased + counts.quarantined,
            "leases": counts.leases,
            "requests": self.shell.calls_open,
            "open_reads": counts.open_reads,
            "offers": machine.offers_open,
            "cached_blocks": machine.cache.digest()[0],
            "total_pages": counts.total,
            "counts": dict(machine.counts),
        }

    async def drain(self) -> None:
        """Take nothing new; `run` returns when offers, leases and reads have ended."""
        if self.shell is not None:
            self.shell.drain()

    async def _serve(
        self, scope: Scope, arena: HostArena, layout: PageLayout, model_digest: str
    ) -> None:
        cache = PageCache(arena.pages, layout.block_tokens)
        traits = Traits(
            model_digest, layout.digest, self._plane.address, layout.page_bytes, tier="host"
        )
        membership = Membership(scope, traits, PoolReport(cache))
        puller = Puller(self._plane, arena, scope.tracer, membership.peer_lost)
        try:
            epoch = await membership.join()
            owner = WorkerRef(membership.worker, epoch, self._plane.address)
            machine = PoolMachine(owner, cache, self._limits(layout))
            metrics = PoolMetrics(scope.metrics, layout.page_bytes, layout.block_tokens)
            self.shell = Shell(scope, membership, machine, puller, metrics)
            scope.log.event("kvpool.serving", pages=arena.pages, transport=self._plane.transport)
            await self.shell.serve()
            await membership.leave()
        finally:
            puller.close()

    def _limits(self, layout: PageLayout) -> PoolLimits:
        config = self._config
        return PoolLimits(
            layout_digest=layout.digest,
            lease_s=config.lease_s,
            waiting_offers=config.offer_limit,
            pull_pages=config.pull_pages,
            pull_timeout_s=config.pull_timeout_s,
        )


class PoolReport:
    """Implements Report: a pool node computes nothing; what counts is its room and its blocks."""

    def __init__(self, cache: PageCache) -> None:
        self._cache = cache

    def load(self) -> WorkerLoad:
        return WorkerLoad(
            queued_requests=0,
            queued_tokens=0,
            running_sequences=0,
            work_left_s=0.0,
            pages_total=self._cache.counts().total,
            pages_free=self._cache.available,
            placement_sequence=0,
        )

    def cost(self) -> CostModel:
        return NO_COST

    def blocks(self) -> tuple[BlockHash, ...]:
        return self._cache.blocks()

    def digest(self) -> tuple[int, str]:
        return self._cache.digest()


class _Guard:
    """Implements ReadGuard: no read is opened before the node has joined."""

    def __init__(self, app: KvPoolApp) -> None:
        self._app = app

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        shell = self._app.shell
        return None if shell is None else shell.open_read(ticket, pages)

    def close_read(self, read: int) -> None:
        if self._app.shell is not None:
            self._app.shell.close_read(read)


def _model(config: KvPoolConfig) -> tuple[PageLayout, str]:
    """The layout of a page and the digest of the model, which may read the whole file."""
    try:
        checkpoint = open_checkpoint(config.model_path)
        return page_layout(checkpoint, config.dtype, config.block_tokens), checkpoint.digest
    except CheckpointError as error:
        raise StartupError(error.message) from error
