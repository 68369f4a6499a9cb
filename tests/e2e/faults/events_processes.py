"""Events that strike processes: signals, restarts, limits."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable

from tests.e2e.faults.events import Event
from tests.e2e.faults.stage import Stage, until


def kill(*names: str) -> Event:
    async def act(stage: Stage) -> None:
        for name in names:
            await stage.cluster.kill(name)

    return Event(f"SIGKILL {', '.join(names)}", act)


def on_leader(then: Callable[[str], Event]) -> Event:
    """Do that to the scheduler that leads; `stage.leader` remembers its name."""

    async def act(stage: Stage) -> None:
        schedulers = [member.name for member in stage.cluster.local.of("scheduler")]

        async def found() -> bool:
            for name in schedulers:
                if await stage.accounted(name, "leading"):
                    stage.leader = name
            return bool(stage.leader)

        await until("a leader", found)
        await then(stage.leader).act(stage)

    return Event(f"{then('the leading scheduler').says}", act)


def resume_old_leader() -> Event:
    async def act(stage: Stage) -> None:
        stage.cluster.resume(stage.leader)

    return Event("SIGCONT the old leader", act)


def pause(name: str) -> Event:
    async def act(stage: Stage) -> None:
        stage.cluster.pause(name)

    return Event(f"SIGSTOP {name}", act)


def resume(name: str) -> Event:
    async def act(stage: Stage) -> None:
        stage.cluster.resume(name)

    return Event(f"SIGCONT {name}", act)


def restart(*names: str) -> Event:
    async def act(stage: Stage) -> None:
        for name in names:
            await stage.cluster.restart(name)

    return Event(f"start {', '.join(names)} again", act)


def restart_the_dead() -> Event:
    async def act(stage: Stage) -> None:
        for member in stage.cluster.local.members.values():
            if not member.child.running:
                await stage.cluster.restart(member.name)

    return Event("start again whatever has died", act)


def drain(name: str, within_s: float = 25.0) -> Event:
    """SIGTERM; it ends by itself with 0."""

    async def act(stage: Stage) -> None:
        child = stage.cluster.local.members[name].child
        assert await child.stop(within_s), f"{name} did not drain in {within_s:g} s"
        assert child.exit_code == 0, f"{name} exited with {child.exit_code}"

    return Event(f"SIGTERM {name}, exit 0", act)


def send(name: str, number: signal.Signals) -> Event:
    async def act(stage: Stage) -> None:
        stage.cluster.local.members[name].child.signal(number)

    return Event(f"{number.name} {name}", act)


def alive(*names: str) -> Event:
    async def act(stage: Stage) -> None:
        for name in names:
            assert stage.cluster.local.members[name].child.running, f"{name} has ended"

    return Event(f"{', '.join(names)} still run", act)


def few_descriptors(name: str, spare: int) -> Event:
    """The process may open only that many files more; `spare` < 0: as many as before."""

    async def act(stage: Stage) -> None:
        pid = stage.cluster.local.members[name].child.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        if spare < 0:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
            return
        taken = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (taken + spare, hard))

    return Event(f"{name} may open {spare if spare >= 0 else 'many'} more files", act)
