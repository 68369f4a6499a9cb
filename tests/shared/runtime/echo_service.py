"""A service with nothing in it but a life: what the process tests start and end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from shared.config import ProcessSettings, setting
from shared.errors import StartupError
from shared.runtime.service import App, Scope, launch


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoSettings(ProcessSettings):
    mode: str = setting(
        "idle",
        "how it behaves",
        choices=("idle", "busy", "endless", "crash", "refuse", "leave", "stuck", "turn"),
    )


class Echo:
    role = "gateway"

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._drained = asyncio.Event()

    async def run(self, scope: Scope) -> None:
        match self._mode:
            case "crash":
                raise ZeroDivisionError("private text")
            case "refuse":
                raise StartupError("the model file is missing:\n set --model-path")
            case "leave":
                return
            case "turn":
                scope.turning.begin("decode")
                await self._drained.wait()
            case "stuck":
                scope.liveness.watch("engine", lambda: 2.5, 2.0)
                await self._drained.wait()
            case _:
                await self._drained.wait()

    def ready(self) -> bool:
        return True

    def accounting(self) -> dict[str, object]:
        return {"pages": 0, "mode": self._mode}

    async def drain(self) -> None:
        if self._mode == "endless":
            return
        if self._mode == "busy":
            await asyncio.sleep(0.5)
        self._drained.set()


def build(scope: Scope, settings: EchoSettings) -> App:
    return Echo(settings.mode)


if __name__ == "__main__":
    raise SystemExit(launch("gateway", EchoSettings, build))
