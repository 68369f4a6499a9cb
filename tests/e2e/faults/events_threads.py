"""Events that strike one thread: the engine's, as a device that never answers would.

Linux only: the kernel's tracing call stops a single thread of a child, with nothing in the
product knowing of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp

from tests.e2e.faults.events import Event
from tests.e2e.faults.stage import Stage, until

_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_DETACH: Final = 17
_ALL_KINDS: Final = 0x40000000
_TRIES: Final = 200
_ANSWER_S: Final = 1.0
_POLL_S: Final = 0.02


def hang_engine(name: str) -> Event:
    """The engine's thread stands still, with or without a step under way, and for ever."""

    async def act(stage: Stage) -> None:
        thread = _engine_thread(stage.cluster.local.members[name].child.pid)
        for _ in range(_TRIES):
            _trace(_SEIZE, thread)
            _trace(_INTERRUPT, thread)
            assert _stopped(thread), f"the engine's thread of {name} has ended"
            if (await liveness(stage, name))[0]:
                break
            # It held the interpreter's lock: then everything stands still, which is another fault.
            _trace(_DETACH, thread)
        else:
            raise AssertionError(f"{name}'s engine always holds the interpreter's lock")
        stage.tracing.append(asyncio.create_task(_reap(thread), name="reap"))

    return Event(f"the engine of {name} hangs", act)


def stuck(name: str, reason: str) -> Event:
    """Until /livez says 503 and why, and /readyz 503 as well."""

    async def act(stage: Stage) -> None:
        async def true() -> bool:
            status, said = await liveness(stage, name)
            return status == 503 and reason in said

        await until(f"{name} says that it is stuck", true)
        assert (await liveness(stage, name, "/readyz"))[0] in (0, 503)

    return Event(f"{name} says 503 on /livez", act)


def ended_itself(name: str, code: int) -> Event:
    async def act(stage: Stage) -> None:
        child = stage.cluster.local.members[name].child
        async with asyncio.timeout(30):
            assert await child.wait() == code

    return Event(f"{name} ends itself with {code}", act)


async def liveness(stage: Stage, name: str, path: str = "/livez") -> tuple[int, str]:
    """Status and words of a probe; (0, '') without an answer in time."""
    member = stage.cluster.local.members[name]
    limit = aiohttp.ClientTimeout(total=_ANSWER_S)
    try:
        async with stage.http.get(f"{member.probe_url}{path}", timeout=limit) as answer:
            return answer.status, await answer.text()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return 0, ""


def _engine_thread(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task")
    found = [task for task in tasks.iterdir() if (task / "comm").read_text().strip() == "engine"]
    assert len(found) == 1, "no thread is called engine"
    return int(found[0].name)


def _trace(request: int, thread: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if library.ptrace(request, thread, None, None):
        raise OSError(ctypes.get_errno(), "this machine does not let a parent trace its child")


def _stopped(thread: int) -> bool:
    """Wait, for a moment of the kernel's, until it has stopped; false: it has ended instead."""
    _, status = os.waitpid(thread, _ALL_KINDS)
    return os.WIFSTOPPED(status)


def _ended(thread: int) -> bool:
    reaped, status = os.waitpid(thread, os.WNOHANG | _ALL_KINDS)
    return bool(reaped) and not os.WIFSTOPPED(status)


async def _reap(thread: int) -> None:
    """A traced thread that has ended keeps its process from being waited for until it is reaped."""
    with suppress(ChildProcessError):
        while True:
            if _ended(thread):
                return
            await asyncio.sleep(_POLL_S)
