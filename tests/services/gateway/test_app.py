"""The process around the listeners: settings that cannot work, spans that always close."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from services.gateway.app import GatewayApp
from services.gateway.config import GatewayConfig
from services.gateway.request_ids import new_request_id
from shared.bus.memory_broker import MemoryBroker
from shared.clock import ManualClock
from shared.errors import StartupError
from tests.builders import scope_on, until
from tests.services.gateway.rig import Rig, chat_body, rig


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"host": "0.0.0.0"}, "allow_anonymous"),
        ({"host": "10.1.2.3"}, "allow_anonymous"),
        ({"serve": ("public", "pages")}, "serve"),
        ({"port": 70_000}, "port"),
        ({"deadline_s": 0.0}, "deadline_s"),
        ({"deadline_s": 601.0}, "deadline_s"),
        ({"attempts": 0}, "attempts"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(StartupError, match=word):
        GatewayConfig(worker_id="g", **settings)


def test_an_open_address_may_be_chosen() -> None:
    assert GatewayConfig(worker_id="g", host="0.0.0.0", allow_anonymous=True).allow_anonymous


async def run_alone(tmp_path: Path, **settings: Any) -> None:
    """Run an app that is expected not to start."""
    config = GatewayConfig(worker_id="gateway-0", otlp_endpoint=None, **settings)
    with pytest.raises(StartupError) as caught:
        try:
            async with asyncio.TaskGroup() as tasks:
                scope = scope_on(MemoryBroker(), tasks, "gateway", config, tmp_path)
                await GatewayApp(scope, config).run(scope)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
    assert "\n" not in caught.value.message


async def test_without_a_model_it_does_not_start(tmp_path: Path) -> None:
    await run_alone(tmp_path, model_path="")
    await run_alone(tmp_path, model_path=str(tmp_path / "missing.gguf"))


async def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        await run_alone(
            tmp_path, model_path="hashchain", port=port, serve=("public",), run_dir=str(tmp_path)
        )


def test_request_ids_sort_by_time() -> None:
    clock = ManualClock(1_000_000.0)
    first = new_request_id(clock)
    clock.advance(0.002)
    second = new_request_id(clock)
    assert first < second and len(first) == len(second) == 26
    assert first.isalnum() and len({new_request_id(clock) for _ in range(100)}) == 100


async def finish(gateway: Rig) -> None:
    await gateway.events()


async def refuse(gateway: Rig) -> None:
    await gateway.chat(temperature=9)


async def fail(gateway: Rig) -> None:
    gateway.script.fail_at = {1: 0, 2: 0, 3: 0}
    await gateway.chat()


async def break_off(gateway: Rig) -> None:
    gateway.script.fail_at = {1: 1, 2: 2, 3: 3}
    with contextlib.suppress(aiohttp.ClientPayloadError):
        await gateway.events()


async def leave(gateway: Rig) -> None:
    gateway.script.pause_after = 2
    url = gateway.url + "/v1/chat/completions"
    async with gateway.http.post(url, json=chat_body(stream=True)) as answer:
        await answer.content.readline()
    await until(lambda: not gateway.app.accounting()["sessions"])


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        (finish, None),
        (refuse, "invalid_parameter"),
        (fail, "attempts_exhausted"),
        (break_off, "attempts_exhausted"),
        (leave, "client_gone"),
    ],
)
async def test_every_span_closes_on_every_ending(
    tmp_path: Path, ending: Any, error: str | None
) -> None:
    async with rig(tmp_path) as gateway:
        await ending(gateway)
        await gateway.settled()
        await until(lambda: any(s.parent is None for s in gateway.spans.get_finished_spans()))
        spans = gateway.spans.get_finished_spans()
        roots = [span for span in spans if span.parent is None]
        assert len(roots) == 1 and roots[0].name == "chat hashchain"
        attributes = dict(roots[0].attributes or {})
        assert attributes.get("error.type") == error
        known = {span.context.span_id for span in spans if span.context}
        assert all(span.parent.span_id in known for span in spans if span.parent)
        attempts = [span for span in spans if span.name == "gateway.attempt"]
        assert len(attempts) == attributes.get("baton.attempts", 0)
        if error is None:
            assert attributes["gen_ai.usage.output_tokens"] == 6
            assert {"gateway.parse", "gateway.render", "gateway.stream"} <= {s.name for s in spans}


async def test_jobs_say_which_incarnation_of_the_gateway_sent_them(tmp_path: Path) -> None:
    """F07: when it dies workers end its jobs, and those of its successor go on."""
    async with rig(tmp_path) as gateway:
        await gateway.events()
        sent = [headers for worker in gateway.cluster.workers for headers in worker.headers]
        assert sent
        assert {headers.epoch for headers in sent} == {1}


class Over(Exception):
    """The test has seen enough: end the process's tasks."""


async def test_before_it_has_an_epoch_nothing_is_sent(tmp_path: Path) -> None:
    """A job without an epoch could not be told from one of an incarnation that is dead."""
    ports: dict[str, Any] = {"port": 0, "admin_port": 0, "traces_port": 0}
    config = GatewayConfig(
        worker_id="gateway-0",
        model_path="hashchain",
        otlp_endpoint=None,
        run_dir=str(tmp_path),
        **ports,
    )
    try:
        async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as http:
            scope = scope_on(MemoryBroker(), tasks, "gateway", config, tmp_path)
            app = GatewayApp(scope, config)
            tasks.create_task(app.run(scope), name="gateway")
            await until(lambda: "port" in app.ports)
            url = f"http://127.0.0.1:{app.ports['port']}/v1/chat/completions"
            async with http.post(url, json=chat_body()) as answer:
                assert answer.status == 503 and answer.headers["retry-after"]
                assert (await answer.json())["error"]["code"] == "loading"
            assert app.accounting()["requests"] == 0
            raise Over
    except* Over:
        pass


async def readiness(gateway: Rig) -> tuple[int, str]:
    async with gateway.http.get(gateway.url + "/ready") as answer:
        return answer.status, answer.headers.get("x-baton-reason", "")


async def test_ready_says_what_is_missing(tmp_path: Path) -> None:
    async with rig(tmp_path, heartbeat_s=0.1) as gateway:
        assert await readiness(gateway) == (200, "")
        served, gateway.cluster.models = gateway.cluster.models, ("another model",)
        await until(lambda: not gateway.app.ready())
        assert await readiness(gateway) == (503, "no_worker")
        gateway.cluster.models = served
        await until(gateway.app.ready)
        await gateway.cluster.bus.close()
        await until(lambda: not gateway.app.ready())
        assert await readiness(gateway) == (503, "control_plane_down")
        async with gateway.http.get(gateway.url + "/health") as answer:
            assert answer.status == 200
