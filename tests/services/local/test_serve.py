"""`python -m services` as a person runs it: up, a death, Ctrl-C; and how it refuses to start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.architecture.sources import ROOT

pytestmark = pytest.mark.process
LINE_S = 60.0
FREE = ("--port=0", "--admin-port=0", "--traces-port=0")


class Serve:
    """One supervisor process and what it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, pattern: str) -> re.Match[str]:
        """The first further line that matches."""
        assert self.process.stdout is not None
        async with asyncio.timeout(LINE_S):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line)
                if found := re.search(pattern, line):
                    return found
        raise AssertionError(f"it ended without {pattern!r}:\n{''.join(self.lines)}")

    async def end(self) -> tuple[int, str]:
        """Exit code and everything printed since."""
        async with asyncio.timeout(LINE_S):
            rest, _ = await self.process.communicate()
        return self.process.returncode or 0, rest.decode()


@contextlib.asynccontextmanager
async def serve(*flags: str) -> AsyncIterator[Serve]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services", *flags),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Serve(process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.communicate()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def chat(url: str) -> int:
    body = {"model": "hashchain", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return int((await answer.json())["usage"]["completion_tokens"])


async def test_serves_revives_the_dead_and_drains(tmp_path: Path) -> None:
    run = tmp_path / "run"
    async with serve("--model=hashchain", f"--run-dir={run}", *FREE) as running:
        url = (await running.until(r"Baton serves hashchain at (http://[\d.:]+)/v1"))[1]
        await running.until("Ctrl-C drains and stops")
        assert await chat(url) == 4
        first = json.loads((run / "decode-0.json").read_text("utf-8"))
        os.kill(first["pid"], signal.SIGKILL)
        await running.until("decode-0 ended with -9; starting it again")
        await running.until(r"decode-0 +ready")
        pids = [json.loads(p.read_text("utf-8"))["pid"] for p in run.glob("*-0.json")]
        assert len(pids) == 5
        running.process.send_signal(signal.SIGINT)
        code, rest = await running.end()
    assert code == 0
    stopped = re.findall(r"^(\w+)-0 +stopped", rest, re.MULTILINE)
    assert stopped[0] == "gateway"
    assert stopped[-1] == "scheduler"
    assert set(stopped) == {"gateway", "prefill", "decode", "kvpool", "scheduler"}
    assert not any(alive(pid) for pid in (*pids, first["pid"]))
    assert list(run.glob("*-0.json")) == []


def processes_of(run: Path) -> list[int]:
    """Everything that was started with this run folder on its command line, but zombies."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(run).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


async def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    run = tmp_path / "run"
    async with serve("--model=hashchain", f"--run-dir={run}", *FREE) as running:
        await running.until("Ctrl-C drains and stops")
        assert len(processes_of(run)) == 8
        running.process.kill()
        await running.end()
        async with asyncio.timeout(30):
            while processes_of(run):  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.05)


async def test_two_clusters_do_not_share_a_run_folder(tmp_path: Path) -> None:
    flags = ("--model=hashchain", f"--run-dir={tmp_path / 'run'}", *FREE)
    async with serve(*flags) as first:
        await first.until("nats +ready")
        async with serve(*flags) as second:
            code, told = await second.end()
    assert code == 2
    assert re.fullmatch(r"baton: another local cluster runs in .*\n", told)


async def test_a_busy_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        flags = ("--model=hashchain", f"--run-dir={tmp_path / 'run'}", *FREE, f"--port={port}")
        async with serve(*flags) as running:
            code, told = await running.end()
    assert code == 2
    assert told == (
        f"baton: port {port} is taken: stop what listens there, or choose another --port\n"
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"GGUF\x03\x00\x00\x00", "GGUF|truncated|end"),
        (b"not a model at all, but long enough", "not a GGUF file"),
    ],
)
async def test_a_damaged_model_is_one_line(tmp_path: Path, content: bytes, told: str) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(content)
    async with serve(f"--model={model}", f"--run-dir={tmp_path / 'run'}", *FREE) as running:
        code, text = await running.end()
    errors = [line for line in text.splitlines() if not re.match(r"\w+(-\d)? +ready", line)]
    assert code == 2
    assert len(errors) == 1, text
    assert re.match(rf"baton: \w+: .*model\.gguf.*({told})", errors[0])


async def test_a_missing_server_is_one_line(tmp_path: Path) -> None:
    """A virtual environment without nats-server, and none on PATH."""
    script = (
        "import sys, sysconfig; sysconfig.get_path = lambda name: '/nonexistent'; "
        "import services.__main__ as main; sys.exit(main.main(sys.argv[1:]))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", script, "--model=hashchain", f"--run-dir={tmp_path / 'run'}", *FREE),
        cwd=ROOT,
        env=os.environ | {"PATH": "/nonexistent"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    code, told = await Serve(process).end()
    assert code == 2
    assert re.fullmatch(r"baton: nats-server is missing: pip install .*\n", told)
