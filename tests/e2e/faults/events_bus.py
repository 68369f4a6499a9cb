"""Events that strike the bus: outages, bad links, messages that come twice or late."""

from __future__ import annotations

import shutil

from tests.e2e.faults.events import Event
from tests.e2e.faults.stage import Stage


def stop_nats() -> Event:
    async def act(stage: Stage) -> None:
        await stage.cluster.stop_nats()

    return Event("SIGKILL nats-server", act)


def start_nats(*, empty: bool = False) -> Event:
    async def act(stage: Stage) -> None:
        if empty:
            shutil.rmtree(stage.cluster.local.folder.nats / "jetstream")
        await stage.cluster.start_nats()

    return Event("start nats-server" + " without its store" * empty, act)


def deaf(role: str, direction: str) -> Event:
    """Nothing passes from (`upstream`) or to (`downstream`) the processes of that role."""

    async def act(stage: Stage) -> None:
        getattr(stage.proxies[role], direction).deaf = True

    return Event(f"{role}: bus {direction} lost", act)


def slow(role: str, *, delay_s: float = 0.0, bytes_per_s: float = 0.0) -> Event:
    async def act(stage: Stage) -> None:
        for weather in (stage.proxies[role].upstream, stage.proxies[role].downstream):
            weather.delay_s, weather.bytes_per_s = delay_s, bytes_per_s

    return Event(f"{role}: bus {delay_s:g} s late, {bytes_per_s:g} B/s", act)


def cut(role: str, *, refuse: bool = False) -> Event:
    async def act(stage: Stage) -> None:
        stage.proxies[role].cut(refuse=refuse)

    return Event(f"{role}: bus connections reset", act)


def heal(role: str) -> Event:
    async def act(stage: Stage) -> None:
        stage.proxies[role].heal()

    return Event(f"{role}: bus whole again", act)


def repeated(listener: str, speaker: str, subject: str, *, late_s: float = 0.0) -> Event:
    async def act(stage: Stage) -> None:
        stage.heard[subject] = await stage.wire.echo(listener, speaker, subject, late_s=late_s)

    return Event(f"every message of {subject} arrives twice", act)


def recorded(listener: str, subject: str) -> Event:
    async def act(stage: Stage) -> None:
        stage.heard[subject] = await stage.wire.hear(listener, subject)

    return Event(f"remember {subject}", act)


def replayed(speaker: str, subject: str) -> Event:
    async def act(stage: Stage) -> None:
        assert await stage.wire.repeat(speaker, stage.heard[subject]), "nothing was said before"

    return Event(f"say {subject} again, the last first", act)
