"""The gateway's shell: opens the model's text side, joins the cluster, serves its listeners.

The only place that names concrete parts; decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import Metric

from services.gateway.aliases import alias_families
from services.gateway.capture import Capture
from services.gateway.cluster_watch import ClusterWatch
from services.gateway.config import GatewayConfig, is_loopback
from services.gateway.core.admission import Limits
from services.gateway.core.machine import GatewayMachine
from services.gateway.core.request import Policy
from services.gateway.courier import Courier, Surroundings
from services.gateway.door import Door, Guard
from services.gateway.generation import Endpoints, Served
from services.gateway.ledger import Ledger, Promise
from services.gateway.listeners import (
    admin_table,
    anyone,
    operators_only,
    public_table,
    traces_table,
)
from services.gateway.metrics import GatewayMetrics
from services.gateway.models import Models
from services.gateway.operator_views import OperatorViews
from services.gateway.page_files import PageFiles
from services.gateway.refusals import Refusal
from services.gateway.routes import Table
from services.gateway.span_store import Retention, SpanStore
from services.gateway.standing import Standing
from services.gateway.status import Status
from services.gateway.text import Text
from services.gateway.traces import Traces
from shared.checkpoint import Checkpoint, open_checkpoint
from shared.errors import CheckpointError, Code, StartupError
from shared.ids import WorkerId
from shared.kv.hashing import CacheIdentity
from shared.runtime.membership import Membership, NothingToReport, Traits
from shared.runtime.service import Scope

DRAIN_MARGIN_S: Final = 1.0


class GatewayApp:
    """One gateway process."""

    role = "gateway"

    def __init__(self, scope: Scope, config: GatewayConfig) -> None:
        self._scope = scope
        self._config = config
        self._metrics = GatewayMetrics(scope.metrics)
        self._doors: dict[str, Door] = {}
        self._machine: GatewayMachine | None = None
        self._courier: Courier | None = None
        self._endpoints: Endpoints | None = None
        self._membership: Membership | None = None
        self._standing: Standing | None = None
        self._watch = ClusterWatch(scope.bus, scope.clock, scope.metrics)
        self._capture = Capture(scope.clock, config.block_tokens)
        self._views = OperatorViews(self._watch, config.runs_dir)
        self._joined = False
        self._done = asyncio.Event()

    @property
    def ports(self) -> dict[str, int]:
        """The bound port of each listener."""
        return {name: door.port for name, door in self._doors.items()}

    async def run(self, scope: Scope) -> None:
        """Serve until drained. Raises StartupError: no model, a busy port, no scheduler."""
        checkpoint, text = await self._open_model()
        traces = self._open_traces()
        self._membership = Membership(scope, Traits(checkpoint.digest), NothingToReport())
        try:
            courier = self._build_core(checkpoint, self._membership)
            await courier.start()
            heartbeat_s = self._config.heartbeat_s
            self._standing = Standing(scope.bus, scope.clock, checkpoint.digest, heartbeat_s)
            await self._standing.start()
            await self._open_doors(self._build_endpoints(checkpoint, text, courier), traces)
            await self._membership.join()
            self._joined = True
            if self._endpoints is not None:
                self._endpoints.joined = True
            scope.log.event("gateway.serving", ports=self.ports)
            await self._done.wait()
            await self._membership.leave()
        finally:
            for name, door in self._doors.items():
                if name == "traces_port":
                    await scope.tracer.flush()  # our own last spans go in before it closes
                await door.close()
            self._views.close()
            if traces is not None:
                traces.close()
            text.close()

    def ready(self) -> bool:
        """A request could be placed now."""
        return self.obstacle() is None

    def obstacle(self) -> Code | None:
        """Why no request could be placed now; None: one could."""
        if self._endpoints is not None and self._endpoints.draining:
            return Code.DRAINING
        return self._standing.obstacle if self._joined and self._standing else Code.LOADING

    def accounting(self) -> dict[str, object]:
        """What is held right now; all zero at rest."""
        machine, courier = self._machine, self._courier
        return {
            "held_pages": 0,
            "leases": 0,
            "requests": 0 if machine is None else machine.open_requests,
            "sessions": 0 if courier is None else courier.open_sessions,
            "waiting_tokens": 0 if machine is None else machine.waiting_tokens,
            "open_cancels": 0 if machine is None else machine.open_cancels,
        }

    async def drain(self) -> None:
        """Take nothing new, let streams finish; just before the time is over the rest ends with
        an error that the client sees."""
        if self._endpoints is None or self._courier is None:
            self._done.set()
            return
        self._endpoints.draining = True
        if self._membership is not None:
            self._membership.set_draining()
        try:
            async with asyncio.timeout(max(0.0, self._config.drain_s - DRAIN_MARGIN_S)):
                await self._courier.quiet.wait()
        except TimeoutError:
            refusal = Refusal(Code.DRAINING, "the gateway is shutting down", None, 5.0)
            self._courier.fail_all(refusal)
            await self._courier.quiet.wait()
        self._done.set()

    # -- building ------------------------------------------------------------------------

    async def _open_model(self) -> tuple[Checkpoint, Text]:
        path = self._config.model_path
        if not path:
            raise StartupError("no model: set --model-path to a GGUF file or a model folder")
        try:
            return await asyncio.to_thread(_read_model, path)
        except CheckpointError as error:
            raise StartupError(error.message) from None

    def _open_traces(self) -> Traces | None:
        config = self._config
        if not {"traces", "admin"} & set(config.serve):
            return None
        path = config.store_path or str(Path(config.run_dir or ".") / "traces.sqlite")
        loop, dropped = asyncio.get_running_loop(), self._metrics.spans_dropped

        def failed(error: BaseException, spans: int) -> None:
            dropped.labels("store_failed").inc(spans)
            loop.call_soon_threadsafe(lambda: self._scope.log.failure("traces.write_failed", error))

        age_s, clock = config.store_hours * 3600, self._scope.clock
        retention = Retention(config.store_bytes, age_s, config.trace_share)

        def set_aside(moved: str, why: str) -> None:
            self._scope.log.event("traces.set_aside", level="warning", moved_to=moved, why=why)

        store = SpanStore(path, retention, clock, failed, set_aside)
        store.start()
        self._metrics.store_bytes.set_function(store.size_bytes)
        return Traces(store, self._watch.worker, config.run_dir)

    def _build_core(self, checkpoint: Checkpoint, membership: Membership) -> Courier:
        config, scope = self._config, self._scope
        identity = CacheIdentity(
            namespace=config.namespace,
            model_digest=checkpoint.digest,
            tokenizer_digest=checkpoint.tokenizer_digest,
            dtype=config.dtype,
            block_tokens=config.block_tokens,
        )
        policy = Policy(
            identity=identity,
            attempts=config.attempts,
            stall_s=config.stall_s,
            queue_patience_s=config.queue_s,
        )
        gateway = WorkerId(config.worker_id)
        limits = Limits(config.queue_limit, config.queue_tokens_limit)
        machine = self._machine = GatewayMachine(gateway, policy, limits)
        self._metrics.running.set_function(lambda: machine.open_requests)
        self._metrics.waiting_tokens.set_function(lambda: machine.waiting_tokens)
        around = Surroundings(
            gateway=gateway,
            epoch=lambda: membership.epoch,
            bus=scope.bus,
            clock=scope.clock,
            tasks=scope.tasks,
            log=scope.log,
            tracer=scope.tracer,
            metrics=self._metrics,
            capture=self._capture,
        )
        self._courier = Courier(self._machine, around)
        return self._courier

    def _build_endpoints(self, checkpoint: Checkpoint, text: Text, courier: Courier) -> Served:
        config, scope = self._config, self._scope
        now_ns = scope.clock.unix_ns(scope.clock.now())
        served = Served(
            name=config.served_model_name or checkpoint.name,
            created=now_ns // 1_000_000_000,
            eos_ids=checkpoint.eos_ids,
            text=text,
        )
        promise = Promise(config.slo_ttft_ms / 1000, config.slo_tpot_ms / 1000)
        ledger = Ledger(
            self._metrics, scope.tracer, scope.clock, promise, config.block_tokens, self._capture
        )
        self._endpoints = Endpoints(served, courier, config, scope.clock, scope.tracer, ledger)
        return served

    async def _open_doors(self, served: Served, traces: Traces | None) -> None:
        config = self._config
        aliases = partial(self._aliases, served.name)
        status = Status(self._scope.metrics, self.obstacle, self.accounting, aliases)
        if "public" in config.serve and self._endpoints is not None:
            models = Models(served, config.block_tokens)
            table = public_table(self._endpoints, models, status, config.body_bytes)
            await self._open_door("port", table, config.host, config.port, anyone)
        inside = config.host if is_loopback(config.host) else "127.0.0.1"
        if "admin" in config.serve:
            self._scope.tasks.create_task(self._watch.run(), name="cluster-watch")
            table = admin_table(status, traces, self._views, PageFiles(), self._capture)
            guard = operators_only(inside)
            await self._open_door("admin_port", table, inside, config.admin_port, guard)
        if "traces" in config.serve and traces is not None:
            table = traces_table(traces)
            host = config.traces_host
            await self._open_door("traces_port", table, host, config.traces_port, anyone)

    async def _aliases(self, model: str) -> Iterable[Metric]:
        if not self._config.metrics_alias:
            return ()
        return alias_families(self._scope.metrics, await self._watch.workers(), model)

    async def _open_door(self, name: str, table: Table, host: str, port: int, guard: Guard) -> None:
        scope, metrics = self._scope, self._metrics
        refusals = metrics.refusals if name == "port" else metrics.operator_refusals
        door = Door(table, scope.clock, scope.log, refusals, guard)
        await door.listen(host, port, f"--{name.replace('_', '-')}")
        self._doors[name] = door


def _read_model(path: str) -> tuple[Checkpoint, Text]:
    checkpoint = open_checkpoint(path)
    checkpoint.digest  # noqa: B018 - computed here, off the event loop
    return checkpoint, Text(checkpoint)
