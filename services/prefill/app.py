"""A prefill worker as a process: builds engine, plane and machine, and names the adapters."""

from __future__ import annotations

import asyncio
from typing import Final

from services.prefill.config import PrefillConfig
from services.prefill.core.machine import Machine
from services.prefill.core.state import Limits
from services.prefill.core.turns import GROUPS
from services.prefill.kv_flow import FlowLimits, Guard
from services.prefill.shell import Shell
from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.geometry import page_layout
from shared.checkpoint.opening import open_checkpoint
from shared.clock import Clock
from shared.dataplane.metering import PlaneMetrics
from shared.dataplane.plane import Plane
from shared.dataplane.selection import open_plane
from shared.engine.batch import Engine
from shared.engine.building import (
    EngineOptions,
    build_engine,
    engine_facts,
    poison,
    pool_layout,
)
from shared.engine.executor import Executor, stall_bound_s
from shared.errors import CheckpointError, EngineError, StartupError
from shared.ids import BlockHash
from shared.kv.cache import PageCache
from shared.kv.hashing import CacheIdentity
from shared.runtime.membership import NO_LOAD, Membership, Traits
from shared.runtime.service import Scope
from shared.runtime.turning import OTHER_ROLE
from shared.wire.requests import WorkerRef
from shared.wire.workers import CostModel, WorkerLoad

_OFFER_SHARE: Final = 0.8
"""Of the lease: how long the pool may take to pull an offer."""
_DRAIN_RESERVE_S: Final = 2.0
_NO_BLOCKS: Final = f"{0:032x}"


class Truth:
    """What heartbeats report; empty until the machine is there."""

    def __init__(self, cost: CostModel, clock: Clock) -> None:
        self.machine: Machine | None = None
        self._cost = cost
        self._clock = clock

    def load(self) -> WorkerLoad:
        return NO_LOAD if self.machine is None else self.machine.load(self._clock.now())

    def cost(self) -> CostModel:
        return self._cost

    def blocks(self) -> tuple[BlockHash, ...]:
        return () if self.machine is None else self.machine.cache.blocks()

    def digest(self) -> tuple[int, str]:
        return (0, _NO_BLOCKS) if self.machine is None else self.machine.cache.digest()


class PrefillApp:
    """Implements App. A test passes its own `plane`."""

    role = "prefill"

    def __init__(self, scope: Scope, config: PrefillConfig, plane: Plane | None = None) -> None:
        self._scope = scope
        self._config = config
        self._plane = plane or open_plane(config, scope.clock, PlaneMetrics(scope.metrics))
        self._machine: Machine | None = None
        self._shell: Shell | None = None
        self._starting: asyncio.Task[None] | None = None

    async def run(self, scope: Scope) -> None:
        """Load, join, serve until drained. Raises StartupError."""
        self._starting = asyncio.current_task()
        checkpoint, engine = await asyncio.to_thread(self._load)
        scope.log.event("engine.loaded", chosen=engine_facts(engine))
        executor = Executor(engine, scope.clock)
        try:
            cost = await executor.costs(self._config.block_tokens)
            poison(engine, self._config.poison_token)
            scope.tasks.create_task(executor.watch(self._lost), name="engine-ranks")
            await self._serve(scope, checkpoint, executor, cost)
        except EngineError as error:
            raise StartupError(f"the engine does not run: {error.message}") from error
        finally:
            await self._plane.close()
            executor.close()

    def ready(self) -> bool:
        shell = self._shell
        return shell is not None and shell.serving and self._scope.bus.connected

    def accounting(self) -> dict[str, object]:
        return {} if self._machine is None else self._machine.accounting()

    async def drain(self) -> None:
        """Finish what runs. A worker that is still starting has nothing to finish: it stops."""
        if self._shell is not None:
            reserve_s = min(_DRAIN_RESERVE_S, self._config.drain_s / 4)
            await self._shell.drain(self._config.drain_s - reserve_s)
        elif self._starting is not None:
            self._starting.cancel()

    def _lost(self, reason: str) -> None:
        self._scope.log.event("engine.lost", level="error", reason=reason)

    def _load(self) -> tuple[Checkpoint, Engine]:
        config = self._config
        try:
            checkpoint = open_checkpoint(config.model_path)
            engine = build_engine(
                checkpoint,
                config.device,
                config.dtype,
                config.kv_pages,
                config.block_tokens,
                config.engine,
                EngineOptions(
                    ranks=config.tensor_parallel, weights=config.weights, pace=config.pace
                ),
            )
        except (CheckpointError, EngineError) as error:
            raise StartupError(error.message) from error
        return checkpoint, engine

    async def _serve(
        self, scope: Scope, checkpoint: Checkpoint, executor: Executor, cost: CostModel
    ) -> None:
        engine, guard, truth = executor.engine, Guard(scope.clock), Truth(cost, scope.clock)
        self._watch(scope, executor, cost)
        self._plane.register(engine.memory, guard, f"{engine.model_digest} {engine.layout_digest}")
        await self._plane.start()
        traits = Traits(
            engine.model_digest,
            engine.layout_digest,
            self._plane.address,
            engine.memory.page_bytes,
        )
        membership = Membership(scope, traits, truth)
        await membership.join()
        machine = Machine(
            WorkerRef(membership.worker, membership.epoch, self._plane.address),
            self._limits(engine, cost),
            self._identity(checkpoint),
            PageCache(engine.memory.pages, self._config.block_tokens),
        )
        limits = FlowLimits(self._config.fetch_timeout_s, _OFFER_SHARE * self._config.lease_s)
        shell = Shell(scope, machine, membership, executor, self._plane, limits)
        truth.machine = self._machine = machine
        guard.attach(machine, shell.feed)
        self._shell = shell
        if self._config.switchable:
            await membership.take_orders(OTHER_ROLE[self.role])
        scope.log.event("prefill.serving", transport=self._plane.transport)
        try:
            await shell.serve()
        finally:
            await membership.leave()

    def _watch(self, scope: Scope, executor: Executor, cost: CostModel) -> None:
        """An engine call that never ends makes the process stuck, and then ends it."""
        config = self._config
        context = executor.engine.context_tokens
        bound_s = stall_bound_s(cost, config.step_tokens, context, config.engine_stall_s)
        scope.liveness.watch("engine", lambda: executor.tick_age_s, bound_s)

    def _limits(self, engine: Engine, cost: CostModel) -> Limits:
        config = self._config
        return Limits(
            block_tokens=config.block_tokens,
            chunk_tokens=config.step_tokens,
            queue_limit=config.queue_limit,
            context_tokens=engine.context_tokens,
            vocab_size=engine.vocab_size,
            layout_digest=pool_layout(engine, self._config.tensor_parallel),
            lease_s=config.lease_s,
            grace_s=config.lease_grace_s,
            cost=cost,
            groups=config.queue_order == "groups",
            age_s=config.ttft_slo_s / GROUPS,
        )

    def _identity(self, checkpoint: Checkpoint) -> CacheIdentity:
        """The namespace comes with each job."""
        layout = page_layout(checkpoint, self._config.dtype, self._config.block_tokens)
        return CacheIdentity(
            namespace="",
            model_digest=checkpoint.digest,
            tokenizer_digest=checkpoint.tokenizer_digest,
            dtype=layout.dtype,
            block_tokens=self._config.block_tokens,
        )
