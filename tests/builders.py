"""A process's scope without a process: real shells on the in-memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.clock import SystemClock
from shared.config import ProcessSettings
from shared.runtime.probes import RunFile
from shared.runtime.service import App, Scope
from shared.telemetry.log import Log
from shared.telemetry.metrics import Metrics
from shared.telemetry.trace import Tracer


def scope_on(
    broker: MemoryBroker,
    tasks: asyncio.TaskGroup,
    role: str,
    settings: ProcessSettings,
    run_dir: Path,
) -> Scope:
    """What a process of this role would be given, on this broker. Spans go nowhere."""
    clock, metrics, worker = SystemClock(), Metrics(), settings.worker_id
    bus = MemoryBus(broker, worker, role)
    return Scope(
        role=role,
        settings=settings,
        clock=clock,
        log=Log(role, worker, "error", "json", clock=clock),
        metrics=metrics,
        tracer=Tracer(role, worker, clock, None, metrics),
        bus=bus,
        open_bucket=bus.key_value,
        tasks=tasks,
        stopping=asyncio.Event(),
        probe_port=0,
        run_file=RunFile(str(run_dir), worker),
    )


class Stopped(Exception):
    """Ends the TaskGroup of `running` once the test is done."""


@asynccontextmanager
async def running() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup whose tasks are cancelled when the block ends, as a process's are."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
            raise Stopped
    except* Stopped:
        pass


async def start(app: App, scope: Scope) -> None:
    """Run the app in its scope's tasks and wait until it is ready (bounded)."""
    scope.tasks.create_task(app.run(scope), name=f"app-{scope.settings.worker_id}")
    await until(app.ready)


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for something a shell will do, bounded."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - a condition over another's state
            await asyncio.sleep(0.005)
