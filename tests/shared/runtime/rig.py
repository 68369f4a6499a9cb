"""A Scope for tests: memory bus, real clock, spans that go nowhere."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.bus.traffic import Traffic
from shared.clock import Clock, SystemClock
from shared.config import ProcessSettings
from shared.runtime.probes import RunFile
from shared.runtime.service import Scope
from shared.telemetry.log import Log
from shared.telemetry.metrics import Metrics
from shared.telemetry.trace import Tracer


def make_scope(
    role: str,
    broker: MemoryBroker,
    tasks: asyncio.TaskGroup,
    settings: ProcessSettings | None = None,
    clock: Clock | None = None,
    run_dir: Path | None = None,
) -> Scope:
    """What `service.main` would hand an app, on `broker` instead of NATS."""
    settings = settings or ProcessSettings(worker_id=f"{role}-0", heartbeat_s=0.02)
    clock, metrics = clock or SystemClock(), Metrics()
    log = Log(role, settings.worker_id, "debug", stream=io.StringIO())
    bus = MemoryBus(broker, settings.worker_id, role, Traffic(metrics, log))
    return Scope(
        role=role,
        settings=settings,
        clock=clock,
        log=log,
        metrics=metrics,
        tracer=Tracer(role, settings.worker_id, clock, None, metrics),
        bus=bus,
        open_bucket=bus.key_value,
        tasks=tasks,
        stopping=asyncio.Event(),
        probe_port=8010,
        run_file=RunFile(str(run_dir or ""), settings.worker_id),
    )
