"""The life of a process: settings in, one TaskGroup, signals, probes, drain, exit code.

Knows nothing of what a service does; an `App` brings that.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Protocol, TypeVar

from shared.bus.bus import Bus, KeyValue
from shared.bus.nats import NatsBus
from shared.bus.traffic import Traffic
from shared.clock import Clock, SystemClock
from shared.config import ProcessSettings, load
from shared.errors import StartupError
from shared.ids import WorkerId
from shared.kv.layout import LAYOUT_VERSION
from shared.runtime.figures import FiguresDesk
from shared.runtime.liveness import Liveness, Watchdog
from shared.runtime.probes import LOOPBACK, Probes, RunFile
from shared.runtime.turning import EXIT_TURNED, Turning
from shared.telemetry.log import Log, capture_libraries
from shared.telemetry.metrics import Metrics
from shared.telemetry.trace import Tracer
from shared.wire import subjects

Settings = TypeVar("Settings", bound=ProcessSettings)

EXIT_STARTUP: Final = 2
EXIT_FAILED: Final = 1
_LAG_PERIOD_S: Final = 0.1
_READY_PERIOD_S: Final = 0.1
_LOOP_LIMIT_S: Final = 60.0
"""An event loop that runs no timer for so long is stuck."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What one process gives its app. `tasks` ends with the process: everything started in it is
    cancelled once `run` has returned."""

    role: str
    settings: ProcessSettings
    clock: Clock
    log: Log
    metrics: Metrics
    tracer: Tracer
    bus: Bus
    """Connected with this role's credential."""
    open_bucket: Callable[[str], Awaitable[KeyValue]]
    """The key-value bucket of that name (granted to the scheduler only)."""
    tasks: asyncio.TaskGroup
    stopping: asyncio.Event
    """Set by the first SIGTERM or SIGINT."""
    probe_port: int
    run_file: RunFile
    liveness: Liveness = field(default_factory=Liveness)
    """Where an app names what must not grow old, e.g. the engine call under way."""
    turning: Turning = field(default_factory=Turning)
    """Begun by the order to serve the other role: the process drains, as after a signal."""


class App(Protocol):
    """One service."""

    @property
    def role(self) -> str: ...

    async def run(self, scope: Scope) -> None:
        """Serve until drained. Returning early or raising ends the process."""
        ...

    def ready(self) -> bool: ...

    def accounting(self) -> dict[str, object]:
        """What is held right now (pages, leases, sequences, ...); all zero at rest."""
        ...

    async def drain(self) -> None:
        """Take no new work and let `run` return when the running work is done."""
        ...


def launch(role: str, kind: type[Settings], build: Callable[[Scope, Settings], App]) -> int:
    """Read the settings from flags, environment and file, and run the service. The exit code."""
    try:
        settings = load(kind, role, sys.argv[1:], os.environ)
    except StartupError as error:
        return _refuse(role, error)
    return main(role, settings, lambda scope: build(scope, settings))


def main(role: str, settings: ProcessSettings, build: Callable[[Scope], App]) -> int:
    """Run one service to its end. 0: drained; 75: drained for the other role; 2: could not start
    (one line says what to do)."""
    try:
        return asyncio.run(_Process(role, settings, build).run(), debug=False)
    except StartupError as error:
        return _refuse(role, error)
    except KeyboardInterrupt:
        return EXIT_FAILED


def _refuse(role: str, error: StartupError) -> int:
    line = " ".join(error.message.split())
    sys.stderr.write(f"{role}: {line}\n")
    return EXIT_STARTUP


class _Finished(Exception):
    """Ends the TaskGroup once the app is done."""


class _Process:
    def __init__(self, role: str, settings: ProcessSettings, build: Callable[[Scope], App]) -> None:
        self._role = role
        self._settings = settings
        self._build = build
        self._clock = SystemClock()
        worker = settings.worker_id
        self._log = Log(role, worker, settings.log_level, settings.log_format, clock=self._clock)
        self._metrics = Metrics()
        self._liveness = Liveness()
        self._ticked_s = self._clock.now()
        self._probes = Probes(self._metrics, self._liveness)
        self._run_file = RunFile(settings.run_dir, worker)
        self._stopping = asyncio.Event()
        self._turning = Turning()
        self._living = False
        self._signals = 0

    async def run(self) -> int:
        """Open what the app stands on, run it, and close in the opposite order."""
        capture_libraries(self._log)
        self._name_build()
        self._listen_to_signals()
        settings = self._settings
        try:
            async with AsyncExitStack() as exits:
                tracer = Tracer(
                    self._role,
                    settings.worker_id,
                    self._clock,
                    settings.otlp_endpoint,
                    self._metrics,
                )
                exits.push_async_callback(tracer.close)
                self._keep_watch(exits)
                await self._probes.start(settings.probe_port)
                exits.push_async_callback(self._probes.close)
                bus = await NatsBus.connect(
                    settings.nats_url,
                    self._role,
                    settings.nats_credentials_file,
                    name=settings.worker_id,
                    traffic=Traffic(self._metrics, self._log),
                )
                exits.push_async_callback(bus.close)
                self._announce()
                exits.callback(self._run_file.remove)
                return await self._live(bus, tracer)
        except asyncio.CancelledError:
            if not self._signals:
                raise
            self._log.event("service.interrupted", level="warning")
            return EXIT_FAILED

    def _keep_watch(self, exits: AsyncExitStack) -> None:
        def stuck(reason: str) -> None:
            self._log.event("service.stuck", level="error", reason=reason)

        watchdog = Watchdog(self._liveness, stuck)
        watchdog.start()
        exits.callback(watchdog.close)

    def _name_build(self) -> None:
        build = self._metrics.gauge("baton_build", "Always 1.", ("version", "layout"))
        build.labels(_version(), str(LAYOUT_VERSION)).set(1)

    def _announce(self) -> None:
        self._run_file.update(
            role=self._role,
            worker=self._settings.worker_id,
            pid=os.getpid(),
            probe_url=f"http://{LOOPBACK}:{self._probes.port}",
        )

    async def _live(self, bus: NatsBus, tracer: Tracer) -> int:
        self._living = True
        try:
            async with asyncio.TaskGroup() as tasks:
                scope = Scope(
                    role=self._role,
                    settings=self._settings,
                    clock=self._clock,
                    log=self._log,
                    metrics=self._metrics,
                    tracer=tracer,
                    bus=bus,
                    open_bucket=bus.key_value,
                    tasks=tasks,
                    stopping=self._stopping,
                    probe_port=self._probes.port,
                    run_file=self._run_file,
                    liveness=self._liveness,
                    turning=self._turning,
                )
                subject = subjects.figures(self._role, WorkerId(self._settings.worker_id))
                await bus.subscribe(subject, FiguresDesk(self._metrics).answer, concurrency=1)
                await self._run_app(self._build(scope), scope)
                raise _Finished
        except BaseExceptionGroup as group:
            return self._verdict(group)

    async def _run_app(self, app: App, scope: Scope) -> None:
        scope.tasks.create_task(self._measure_lag(), name="loop-lag")
        scope.tasks.create_task(keep_for_good(app), name="keep-for-good")
        runner = scope.tasks.create_task(app.run(scope), name=self._role)
        stop = scope.tasks.create_task(self._stopping.wait(), name="stop")
        turn = scope.tasks.create_task(self._turning.asked.wait(), name="turn")
        self._probes.show(app)
        self._log.event("service.started", pid=os.getpid(), probe_port=self._probes.port)
        await asyncio.wait({runner, stop, turn}, return_when=asyncio.FIRST_COMPLETED)
        if runner.done():
            return
        self._probes.draining = True
        limit_s = self._settings.drain_s
        self._log.event("service.draining", drain_s=limit_s, turning=self._turning.to)
        try:
            async with asyncio.timeout(limit_s):
                await app.drain()
                await asyncio.wait({runner})
        except TimeoutError:
            self._log.event("service.drain_timed_out", level="warning")

    def _verdict(self, group: BaseExceptionGroup[BaseException]) -> int:
        """The exit code for how the TaskGroup ended. A StartupError passes through alone."""
        _, failures = group.split(_Finished)
        if failures is None:
            turned = bool(self._turning.to) and not self._signals
            self._log.event("service.stopped", turning=self._turning.to if turned else "")
            return EXIT_TURNED if turned else 0
        for error in _leaves(failures):
            if isinstance(error, StartupError):
                raise error from None
            self._log.failure("service.failed", error)
        return EXIT_FAILED

    def _listen_to_signals(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def received() -> None:
            self._signals += 1
            hurried = self._stopping.is_set() or not self._living
            if hurried and task is not None:
                task.cancel()
            self._stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, received)

    async def _measure_lag(self) -> None:
        lag = self._metrics.histogram(
            "baton_loop_lag_seconds", "How late the event loop runs its timers."
        )
        self._ticked_s = self._clock.now()
        self._liveness.watch(
            "event loop", lambda: self._clock.now() - self._ticked_s, _LOOP_LIMIT_S
        )
        while True:
            due_s = self._clock.now() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self._ticked_s = self._clock.now()
            lag.observe(max(0.0, self._ticked_s - due_s))


async def keep_for_good(app: App) -> None:
    """What is there once the app serves lives as long as the process: searches for reference
    cycles need not walk it, in the middle of a step, again and again."""
    while not app.ready():  # noqa: ASYNC110 - an app has no event for it
        await asyncio.sleep(_READY_PERIOD_S)
    gc.collect()
    gc.freeze()


def _version() -> str:
    try:
        return version("baton")
    except PackageNotFoundError:
        return "unknown"


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
