"""What the outside may ask a process on loopback, and the file that says where to ask.

GET /livez /readyz /metrics /accounting, and /admin/<name> where the app has a method `view`.
Answers from memory only; knows no service.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import orjson
from aiohttp import web

from shared.errors import StartupError
from shared.runtime.liveness import Liveness
from shared.telemetry.metrics import Metrics

LOOPBACK: Final = "127.0.0.1"


class Probed(Protocol):
    """The part of an app that probes look at."""

    def ready(self) -> bool: ...

    def accounting(self) -> dict[str, object]: ...


class Probes:
    """The probe listener. Live while nothing that `liveness` watches is stuck; ready when besides
    `show` was called, the app says so, and `draining` is false."""

    def __init__(self, metrics: Metrics, liveness: Liveness) -> None:
        self.port = 0
        self.draining = False
        self._metrics = metrics
        self._liveness = liveness
        self._app: Probed | None = None
        self._runner: web.AppRunner | None = None

    async def start(self, port: int) -> None:
        """Listen on loopback; 0 takes any free port. Raises StartupError when it is taken."""
        site = web.Application()
        site.router.add_get("/livez", self._livez)
        site.router.add_get("/readyz", self._readyz)
        site.router.add_get("/metrics", self._render)
        site.router.add_get("/accounting", self._accounting)
        site.router.add_get("/admin/{view}", self._view)
        self._runner = web.AppRunner(site, access_log=None, keepalive_timeout=15)
        await self._runner.setup()
        listener = web.TCPSite(self._runner, LOOPBACK, port)
        try:
            await listener.start()
        except OSError:
            await self.close()
            raise StartupError(
                f"probe port {port} is taken: stop what listens there or set --probe-port"
            ) from None
        self.port = self._runner.addresses[0][1]

    def show(self, app: Probed) -> None:
        self._app = app

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, request: web.Request) -> web.Response:
        obstacle = self._liveness.obstacle
        if obstacle:
            return web.Response(text=f"stuck: {obstacle}\n", status=503)
        return web.Response(text="alive\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        word = "draining" if self.draining else "loading"
        if not self.draining and self._app is not None:
            word = "ready" if self._app.ready() else "not ready"
        if self._liveness.obstacle:
            word = "stuck"
        return web.Response(text=f"{word}\n", status=200 if word == "ready" else 503)

    async def _render(self, request: web.Request) -> web.Response:
        body, kind = self._metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _accounting(self, request: web.Request) -> web.Response:
        found = {} if self._app is None else self._app.accounting()
        return web.Response(body=orjson.dumps(found), content_type="application/json")

    async def _view(self, request: web.Request) -> web.Response:
        """The app's `view(name)` as JSON; it gives None for a name that is none."""
        look: Callable[[str], object] | None = getattr(self._app, "view", None)
        found = None if look is None else look(request.match_info["view"])
        if found is None:
            return web.Response(text="there is no such view\n", status=404)
        return web.Response(body=orjson.dumps(found), content_type="application/json")


class RunFile:
    """`<run_dir>/<worker>.json`: where this process can be asked. Without a run_dir: nothing."""

    def __init__(self, run_dir: str, worker: str) -> None:
        self._path = Path(run_dir) / f"{worker}.json" if run_dir else None
        self._fields: dict[str, str | int] = {}

    def update(self, **fields: str | int) -> None:
        """Add fields and replace the file in one step, so that a reader never sees half of it.
        Raises StartupError when the folder cannot be written."""
        self._fields |= fields
        if self._path is None:
            return
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(json.dumps(self._fields), "utf-8")
            draft.replace(self._path)
        except OSError as error:
            raise StartupError(f"cannot write {self._path}: {error.strerror}") from None

    def remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
