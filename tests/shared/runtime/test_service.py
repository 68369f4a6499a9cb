"""The life of a real process: start, probes, signals, drain, exit codes, one clear line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shared.bus.server import NatsServer
from shared.runtime.turning import EXIT_TURNED
from tests.contracts.wires import until

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.process


class Running:
    """One started process and its run file."""

    def __init__(self, process: Process, run_dir: Path) -> None:
        self.process = process
        self.file = run_dir / "gateway-0.json"

    async def facts(self) -> dict[str, Any]:
        """What the run file says, once the service has started."""
        await until(self.file.exists, 15.0)
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    async def get(self, path: str) -> tuple[int, str]:
        url = str((await self.facts())["probe_url"])
        async with aiohttp.ClientSession() as client, client.get(url + path) as answer:
            return answer.status, await answer.text()

    async def says(self, word: str) -> None:
        """Wait until /readyz answers `word`."""
        async with asyncio.timeout(10.0):
            while (await self.get("/readyz"))[1] != f"{word}\n":  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.01)

    async def end(self) -> tuple[int, list[str]]:
        """Exit code and what it wrote on standard error."""
        async with asyncio.timeout(15.0):
            _, errors = await self.process.communicate()
        return self.process.returncode or 0, errors.decode().splitlines()


@asynccontextmanager
async def _started(server: NatsServer | None, run_dir: Path, *flags: str) -> AsyncIterator[Running]:
    known = []
    if server is not None:
        known = ["--nats-url", server.url]
        known += ["--nats-credentials-file", str(server.credentials("gateway"))]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.shared.runtime.echo_service", "--run-dir", str(run_dir)),
        *("--otlp-endpoint", ""),
        *known,
        *flags,
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("BATON_")},
        stderr=PIPE,
    )
    try:
        yield Running(process, run_dir)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_it_starts_answers_probes_and_drains(nats_server: NatsServer, tmp_path: Path) -> None:
    async with _started(nats_server, tmp_path) as running:
        facts = await running.facts()
        assert (facts["role"], facts["worker"]) == ("gateway", "gateway-0")
        assert facts["pid"] == running.process.pid
        await running.says("ready")
        assert await running.get("/livez") == (200, "alive\n")
        assert await running.get("/accounting") == (200, '{"pages":0,"mode":"idle"}')
        status, metrics = await running.get("/metrics")
        assert status == 200
        assert "baton_loop_lag_seconds_bucket" in metrics
        assert "baton_bus_messages_total" in metrics
        assert (await running.get("/"))[0] == 404
        running.process.send_signal(signal.SIGTERM)
        code, lines = await running.end()
    assert code == 0
    events = [json.loads(line)["event"] for line in lines]
    assert events == ["service.started", "service.draining", "service.stopped"]
    assert not running.file.exists()


async def test_while_draining_it_is_not_ready_and_finishes_its_work(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with _started(nats_server, tmp_path, "--mode", "busy") as running:
        await running.says("ready")
        running.process.send_signal(signal.SIGINT)
        await running.says("draining")
        assert (await running.get("/readyz"))[0] == 503
        assert (await running.end())[0] == 0


async def test_a_second_signal_ends_it_fast(nats_server: NatsServer, tmp_path: Path) -> None:
    async with _started(nats_server, tmp_path, "--mode", "endless") as running:
        await running.says("ready")
        running.process.send_signal(signal.SIGTERM)
        await running.says("draining")
        running.process.send_signal(signal.SIGTERM)
        code, lines = await running.end()
    assert code == 1
    assert json.loads(lines[-1])["event"] == "service.interrupted"


async def test_a_worker_that_turns_drains_and_says_so_by_its_exit_status(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with _started(nats_server, tmp_path, "--mode", "turn") as running:
        code, lines = await running.end()
    assert code == EXIT_TURNED
    events = [json.loads(line) for line in lines]
    assert [event["event"] for event in events][-2:] == ["service.draining", "service.stopped"]
    assert events[-1]["turning"] == "decode"


async def test_the_drain_deadline_holds(nats_server: NatsServer, tmp_path: Path) -> None:
    async with _started(nats_server, tmp_path, "--mode=endless", "--drain-s=0.3") as running:
        await running.says("ready")
        running.process.send_signal(signal.SIGTERM)
        code, lines = await running.end()
    assert code == 0
    assert "service.drain_timed_out" in [json.loads(line)["event"] for line in lines]


async def test_a_crash_is_told_without_its_text_and_exits_1(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with _started(nats_server, tmp_path, "--mode", "crash") as running:
        code, lines = await running.end()
    assert code == 1
    (failure,) = [entry for entry in map(json.loads, lines) if entry["level"] == "error"]
    assert (failure["event"], failure["error"]) == ("service.failed", "ZeroDivisionError")
    assert "private" not in "".join(lines)


async def test_a_service_that_cannot_start_says_one_line_and_exits_2(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with _started(nats_server, tmp_path, "--mode", "refuse") as running:
        code, lines = await running.end()
    assert code == 2
    assert lines[-1] == "gateway: the model file is missing: set --model-path"


async def test_a_stuck_process_says_so_and_ends_itself(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Whoever watches it sees the end of a process, whether it looks at probes or not."""
    async with _started(nats_server, tmp_path, "--mode", "stuck") as running:
        await running.says("stuck")
        status, reason = await running.get("/livez")
        code, lines = await running.end()
    assert (status, code) == (503, 3)
    assert reason == "stuck: engine without progress for 2.5 s (bound 2 s)\n"
    last = json.loads(lines[-1])
    assert (last["event"], last["level"]) == ("service.stuck", "error")


async def test_an_app_that_is_done_ends_its_process(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with _started(nats_server, tmp_path, "--mode", "leave") as running:
        assert (await running.end())[0] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--mod", "x"), "gateway: --mod is not a flag; did you mean --mode?"),
        (("--run-dir", "/nowhere/at/all"), "gateway: cannot write /nowhere/at/all"),
        (("--nats-credentials-file", "/nowhere"), "gateway: cannot read NATS credentials"),
    ],
)
async def test_wrong_settings_are_one_line_and_exit_2(
    nats_server: NatsServer, tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    async with _started(nats_server, tmp_path, *flags) as running:
        code, lines = await running.end()
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith(words)


async def test_a_taken_probe_port_is_one_line(nats_server: NatsServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with _started(nats_server, tmp_path, "--probe-port", port) as running:
            code, lines = await running.end()
    assert code == 2
    assert lines == [
        f"gateway: probe port {port} is taken: stop what listens there or set --probe-port"
    ]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_signal_while_it_waits_for_nats_ends_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ("--nats-url", "nats://127.0.0.1:1", "--probe-port", str(port))
    async with _started(None, tmp_path, *flags) as running:
        await until(lambda: _listens(port), 10.0)
        running.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(3.0):
            code, _ = await running.end()
    assert code != 0
