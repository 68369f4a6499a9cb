"""The containers for real: healthy, confined, one chat with its trace, a clean stop."""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Iterator
from typing import Any

import docker
import pytest

from shared.ports import free_port
from tests.docker.engine import Project, why_not

pytestmark = [pytest.mark.docker, pytest.mark.skipif(bool(why_not()), reason=why_not())]

ROLES = {"gateway", "scheduler", "prefill", "decode", "kvpool"}
STANDBY = "scheduler-1"
SERVICES = {"nats", STANDBY, *ROLES}
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    client = docker.from_env(timeout=900)
    running = Project(client, f"baton-test-{secrets.token_hex(4)}", free_port())
    running.build()
    try:
        running.compose("up", "--detach", "--no-build")
        running.until_healthy()
        yield running
    finally:
        running.compose("down", "--volumes", "--timeout", "20")
        client.close()


def ask(project: Project) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """One streamed, greedy chat: headers and events."""
    with urllib.request.urlopen(f"{project.url}/v1/models", timeout=30) as answer:
        model = json.load(answer)["data"][0]["id"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 24,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{project.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        lines = [line[6:].strip() for line in answer if line.startswith(b"data: ")]
    assert lines.pop() == b"[DONE]"
    return {k.lower(): v for k, v in answer.headers.items()}, [json.loads(line) for line in lines]


def test_nats_five_services_and_the_standby_are_healthy(project: Project) -> None:
    assert set(project.containers()) == SERVICES


def test_a_chat_streams_and_its_trace_names_all_services(project: Project) -> None:
    headers, events = ask(project)
    text = "".join(
        choice["delta"].get("content") or "" for event in events for choice in event["choices"]
    )
    assert "Paris" in text
    assert events[-1]["usage"]["completion_tokens"] > 0
    command = ("python", "-m", "loadgen", "trace", headers["x-baton-trace-id"], "--json")
    spans: list[dict[str, Any]] = []
    for _ in range(20):
        # Spans arrive in batches; each try starts a process, which takes its time.
        code, output = project.run("gateway", *command)
        spans = json.loads(output) if code == 0 else []
        if {span["service"] for span in spans} == ROLES:
            break
    assert {span["service"] for span in spans} == ROLES
    pulls = [s["attributes"] for s in spans if s["name"] == "transfer.pull"]
    assert sum(pull["baton.transfer.bytes_raw"] for pull in pulls) > 0
    assert {pull["baton.transfer.transport"] for pull in pulls} == {"ucx:tcp"}


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_container_has_no_rights_it_does_not_need(project: Project, service: str) -> None:
    assert project.run(service, "id", "-u") == (0, "10001\n")
    assert project.run(service, "touch", "/app/x")[0] != 0
    status = project.run(service, "cat", "/proc/1/status")[1]
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_nothing_listens_on_all_addresses(project: Project, service: str) -> None:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows = [line.split() for line in project.run(service, "cat", table)[1].splitlines()[1:]]
        listening = [row[1] for row in rows if row[3] == "0A"]
        assert [address for address in listening if not int(address.split(":")[0], 16)] == []


def test_a_service_holds_its_own_secret_only(project: Project) -> None:
    for service in sorted(SERVICES - {"nats"}):
        found = project.run(service, "find", "/secrets", "-type", "f")[1].split()
        assert found == ["/secrets/own/nats.json"]
        login = json.loads(project.run(service, "cat", "/secrets/own/nats.json")[1])
        assert login["user"] == service.removesuffix("-1")


def leaders(project: Project) -> list[str]:
    """Which of the running schedulers lead."""
    look = (
        "import json, urllib.request as u;"
        "print(json.load(u.urlopen('http://127.0.0.1:8010/accounting'))['leading'])"
    )
    running = [n for n in ("scheduler", STANDBY) if project.containers()[n].status == "running"]
    return [name for name in running if project.run(name, "python", "-c", look) == (0, "True\n")]


def test_losing_the_leading_scheduler_is_survived(project: Project) -> None:
    """The other one takes over by itself; the lost one comes back as the standby."""
    (lost,) = leaders(project)
    container = project.containers()[lost]
    container.kill()
    headers, events = ask(project)
    assert "x-baton-trace-id" in headers and events
    (leading,) = leaders(project)
    assert leading != lost
    container.start()
    project.until_healthy()
    assert leaders(project) == [leading]


def test_stop_drains_and_every_process_exits_0(project: Project) -> None:
    """The last test: the project is down afterwards."""
    project.compose("stop")
    codes = {name: one.attrs["State"]["ExitCode"] for name, one in project.containers().items()}
    assert codes == dict.fromkeys(SERVICES, 0)
