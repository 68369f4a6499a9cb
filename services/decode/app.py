"""A decode worker as a process: builds engine, plane and core, and names the adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from services.decode.config import DecodeConfig
from services.decode.core import report
from services.decode.core.machine import DecodeMachine
from services.decode.core.rules import DecodeRules
from services.decode.kv_inbox import KvInbox
from services.decode.shell import Shell
from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.geometry import page_layout
from shared.checkpoint.opening import open_checkpoint
from shared.dataplane.metering import PlaneMetrics
from shared.dataplane.plane import Plane
from shared.dataplane.selection import open_plane
from shared.engine.batch import Engine
from shared.engine.building import build_engine, poison
from shared.engine.executor import Executor
from shared.errors import CheckpointError, EngineError, StartupError
from shared.ids import BlockHash, Generation, PageId
from shared.kv.cache import PageCache
from shared.runtime.membership import NO_LOAD, Membership, Traits
from shared.runtime.service import Scope
from shared.wire.workers import CostModel, WorkerLoad

_DRAIN_RESERVE_S: Final = 2.0
_NO_BLOCKS: Final = f"{0:032x}"


class NoReads:
    """Implements ReadGuard: nobody reads from a decode worker."""

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        return None

    def close_read(self, read: int) -> None:
        """There is none."""


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
        executor = Executor(engine, scope.clock)
        try:
            cost = await executor.costs(self._config.block_tokens)
            poison(engine, self._config.poison_token)
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
        return {} if self._machine is None else report.accounting(self._machine)

    async def drain(self) -> None:
        if self._shell is not None:
            reserve_s = min(_DRAIN_RESERVE_S, self._config.drain_s / 4)
            await self._shell.drain(self._config.drain_s - reserve_s)

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
            )
        except (CheckpointError, EngineError) as error:
            raise StartupError(error.message) from error
        return checkpoint, engine

    async def _serve(
        self, scope: Scope, checkpoint: Checkpoint, executor: Executor, cost: CostModel
    ) -> None:
        engine, truth = executor.engine, Truth(cost)
        self._plane.register(
            engine.memory, NoReads(), f"{engine.model_digest} {engine.layout_digest}"
        )
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
            self._rules(membership, checkpoint, engine),
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
        shell = Shell(scope, machine, membership, executor, inbox, cost)
        self._shell = shell
        scope.log.event("decode.serving", transport=self._plane.transport)
        try:
            await shell.serve()
        finally:
            await membership.leave()

    def _rules(self, membership: Membership, checkpoint: Checkpoint, engine: Engine) -> DecodeRules:
        config = self._config
        layout = page_layout(checkpoint, config.dtype, config.block_tokens)
        return DecodeRules(
            worker=membership.worker,
            epoch=membership.epoch,
            model_digest=checkpoint.digest,
            tokenizer_digest=checkpoint.tokenizer_digest,
            dtype=layout.dtype,
            block_tokens=config.block_tokens,
            context_tokens=engine.context_tokens,
            vocab_size=engine.vocab_size,
            step_tokens=config.step_tokens,
            max_sequences=config.max_sequences,
            queue_limit=config.queue_limit,
            reserve_wait_s=config.reserve_wait_s,
            lease_s=config.lease_s,
            recompute_tokens=config.recompute_tokens,
        )
