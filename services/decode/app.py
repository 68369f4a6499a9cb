"""A decode worker as a process: builds engine, plane and core, and names the adapters."""

from __future__ import annotations

import asyncio
from typing import Final

from services.decode.config import DecodeConfig
from services.decode.core import report
from services.decode.core.batching import Budget
from services.decode.core.machine import DecodeMachine
from services.decode.core.rules import DecodeRules
from services.decode.kv_inbox import KvInbox
from services.decode.kv_pool import Guard, PoolFlow
from services.decode.shell import Shell
from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.geometry import page_layout
from shared.checkpoint.opening import open_checkpoint
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
from shared.runtime.membership import NO_LOAD, Membership, Traits
from shared.runtime.service import Scope
from shared.runtime.turning import OTHER_ROLE
from shared.wire.workers import CostModel, WorkerLoad

_DRAIN_RESERVE_S: Final = 2.0
_BUDGET_SEQUENCES: Final = 8
"""Decode in the steps that the budget is measured with."""
_MOST_TOKENS: Final = 2048
_OFFER_SHARE: Final = 0.8
"""Of the lease: how long the pool may take to pull an offer."""
_NO_BLOCKS: Final = f"{0:032x}"


class Truth:
    """What heartbeats report; empty until the core is there."""

    def __init__(self, cost: CostModel) -> None:
        self.machine: DecodeMachine | None = None
        self._cost = cost

    def load(self) -> WorkerLoad:
        return NO_LOAD if self.machine is None else report.load(self.machine, self._cost)

    def cost(self) -> CostModel:
        return self._cost

    def blocks(self) -> tuple[BlockHash, ...]:
        return () if self.machine is None else self.machine.desk.cache.blocks()

    def digest(self) -> tuple[int, str]:
        return (0, _NO_BLOCKS) if self.machine is None else self.machine.desk.cache.digest()


class DecodeApp:
    """Implements App. A test passes its own `plane`."""

    role = "decode"

    def __init__(self, scope: Scope, config: DecodeConfig, plane: Plane | None = None) -> None:
        self._scope = scope
        self._config = config
        self._plane = plane or open_plane(config, scope.clock, PlaneMetrics(scope.metrics))
        self._machine: DecodeMachine | None = None
        self._shell: Shell | None = None

    async def run(self, scope: Scope) -> None:
        """Load, join, serve until drained. Raises StartupError."""
        checkpoint, engine = await asyncio.to_thread(self._load)
        scope.log.event("engine.loaded", chosen=engine_facts(engine))
        executor = Executor(engine, scope.clock)
        try:
            cost = await executor.costs(self._config.block_tokens)
            budget = await self._budget(scope, executor)
            poison(engine, self._config.poison_token)
            scope.tasks.create_task(executor.watch(self._lost), name="engine-ranks")
            await self._serve(scope, checkpoint, executor, cost, budget)
        except EngineError as error:
            raise StartupError(f"the engine does not run: {error.message}") from error
        finally:
            await self._plane.close()
            executor.close()

    def ready(self) -> bool:
        shell = self._shell
        return shell is not None and shell.serving and self._scope.bus.connected

    def accounting(self) -> dict[str, object]:
        return {} if self._machine is None else report.accounting(self._machine)

    async def drain(self) -> None:
        if self._shell is not None:
            reserve_s = min(_DRAIN_RESERVE_S, self._config.drain_s / 4)
            await self._shell.drain(self._config.drain_s - reserve_s)

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
                    ranks=config.tensor_parallel,
                    weights=config.weights,
                    pace=config.pace,
                    graph_sequences=config.max_sequences if config.graphs else 0,
                ),
            )
        except (CheckpointError, EngineError) as error:
            raise StartupError(error.message) from error
        return checkpoint, engine

    async def _budget(self, scope: Scope, executor: Executor) -> Budget:
        """The token budget of a step: as set, or as measured against the target."""
        config = self._config
        tokens, seconds, kept = config.step_tokens, 0.0, True
        if not tokens:
            sequences = min(_BUDGET_SEQUENCES, config.max_sequences)
            found = await executor.step_budget(
                config.block_tokens, sequences, _MOST_TOKENS, config.tpot_target_s
            )
            tokens, seconds, kept = found.tokens, found.seconds, found.kept
        budget = Budget(tokens, max(tokens, config.most_tokens), config.block_tokens)
        scope.log.event(
            "decode.step_budget",
            level="info" if kept else "warning",
            step_tokens=budget.step_tokens,
            alone_tokens=budget.alone_tokens,
            chosen="fixed" if config.step_tokens else "measured",
            policy=config.step_policy,
            step_seconds=round(seconds, 4),
            tpot_target_s=config.tpot_target_s,
            target_kept=kept,
        )
        return budget

    async def _serve(
        self,
        scope: Scope,
        checkpoint: Checkpoint,
        executor: Executor,
        cost: CostModel,
        budget: Budget,
    ) -> None:
        engine, truth, guard = executor.engine, Truth(cost), Guard(scope.clock)
        self._watch(scope, executor, cost, budget)
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
        machine = DecodeMachine(
            self._rules(membership, checkpoint, engine, cost, budget),
            PageCache(engine.memory.pages, self._config.block_tokens),
        )
        inbox = KvInbox(
            scope.bus,
            self._plane,
            executor,
            lambda: (membership.worker, membership.epoch),
            membership.peer_lost,
            self._config.pull_timeout_s,
        )
        truth.machine = self._machine = machine
        config = self._config
        pool = PoolFlow(scope.bus, config.pull_timeout_s, _OFFER_SHARE * config.lease_s)
        shell = Shell(scope, machine, membership, executor, inbox, pool, cost)
        guard.attach(machine, shell.feed)
        self._shell = shell
        if self._config.switchable:
            await membership.take_orders(OTHER_ROLE[self.role])
        scope.log.event("decode.serving", transport=self._plane.transport)
        try:
            await shell.serve()
        finally:
            await membership.leave()

    def _watch(self, scope: Scope, executor: Executor, cost: CostModel, budget: Budget) -> None:
        """An engine call that never ends makes the process stuck, and then ends it."""
        context = executor.engine.context_tokens
        bound_s = stall_bound_s(cost, budget.alone_tokens, context, self._config.engine_stall_s)
        scope.liveness.watch("engine", lambda: executor.tick_age_s, bound_s)

    def _rules(
        self,
        membership: Membership,
        checkpoint: Checkpoint,
        engine: Engine,
        cost: CostModel,
        budget: Budget,
    ) -> DecodeRules:
        config = self._config
        layout = page_layout(checkpoint, config.dtype, config.block_tokens)
        return DecodeRules(
            costs=cost,
            plane_address=self._plane.address,
            layout_digest=pool_layout(engine, config.tensor_parallel),
            page_bytes=engine.memory.page_bytes,
            worker=membership.worker,
            epoch=membership.epoch,
            model_digest=checkpoint.digest,
            tokenizer_digest=checkpoint.tokenizer_digest,
            dtype=layout.dtype,
            block_tokens=config.block_tokens,
            context_tokens=engine.context_tokens,
            vocab_size=engine.vocab_size,
            step_tokens=budget.step_tokens,
            alone_tokens=budget.alone_tokens,
            step_policy=config.step_policy,
            tpot_target_s=config.tpot_target_s,
            forecast=config.forecast,
            point_s=config.priority_point_s,
            max_sequences=config.max_sequences,
            queue_limit=config.queue_limit,
            reserve_wait_s=config.reserve_wait_s,
            lease_s=config.lease_s,
            recompute_tokens=config.recompute_tokens,
        )
