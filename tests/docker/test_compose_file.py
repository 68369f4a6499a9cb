"""The compose file and the image recipe, read without an engine: what they must never hold."""

from __future__ import annotations

import re
import subprocess
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from tests.architecture.sources import ROOT
from tests.docker.engine import compose_command

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ROLES = {"nats", "gateway", "scheduler", "prefill", "decode", "kvpool"}
STANDBY = "scheduler-1"
BEYOND_1_29 = {"gpus", "develop", "annotations", "attach", "cgroup"}
"""Keys of a service that Compose 1.29 refuses."""


def profile(name: str) -> set[str]:
    return {service for service, entry in SERVICES.items() if name in entry["profiles"]}


def test_profiles_hold_all_roles() -> None:
    assert profile("cpu") == ROLES | {STANDBY}
    assert {name.removesuffix("-gpu") for name in profile("gpu")} == ROLES | {STANDBY, "anchor"}


def test_only_the_elastic_worker_holds_two_credentials_and_serves_either_role() -> None:
    """It is an addition: without its profile every worker keeps its role and its one secret."""
    assert profile("elastic") == {"elastic"}
    elastic = SERVICES["elastic"]
    assert elastic["command"] == ["worker", "decode"]
    assert elastic["volumes"] == [
        "prefill-secret:/secrets/prefill:ro",
        "decode-secret:/secrets/decode:ro",
    ]
    start = (ROOT / "ops" / "docker" / "start").read_text("utf-8")
    assert 'python -m services.worker "$role" /secrets' in start


def test_the_standby_is_a_second_scheduler_on_its_own() -> None:
    """Nothing distinguishes the two, and nobody depends on the second: it may be lost as well.
    `ops/docker/start` gives each container a worker id of its own."""
    assert SERVICES[STANDBY] == SERVICES["scheduler"]
    assert "container_name" not in SERVICES["scheduler"]
    assert SERVICES["scheduler"]["restart"] == "unless-stopped"
    for name, service in SERVICES.items():
        assert STANDBY not in service.get("depends_on", {}), name
    start = (ROOT / "ops" / "docker" / "start").read_text("utf-8")
    assert '--worker-id="$role-$(hostname)"' in start


def test_compose_1_29_can_read_it() -> None:
    assert set(COMPOSE) <= {"services", "volumes", "x-limits", "x-service", "x-worker"} | {
        "x-gpu-worker"
    }
    for service in SERVICES.values():
        assert BEYOND_1_29.isdisjoint(service)
        assert "start_interval" not in service.get("healthcheck", {})
        assert isinstance(service.get("env_file", ""), str)
        for wish in dict(service.get("depends_on", {})).values():
            assert set(wish) == {"condition"}


@pytest.mark.parametrize("names", [("cpu",), ("gpu",), ("cpu", "elastic")])
def test_compose_itself_accepts_it(names: tuple[str, ...]) -> None:
    command = compose_command()
    if command is None:
        pytest.skip("neither docker-compose nor docker compose is installed")
    done = subprocess.run(
        [*command, *(f"--profile={name}" for name in names), "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_containers_are_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert set(service.get("cap_add", [])) <= {"SYS_PTRACE", "IPC_LOCK"}
    assert name.endswith("-gpu") or "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "network_mode" not in service
    assert not {service.get("ipc"), service.get("pid")} & {"host"}
    for mount in service.get("tmpfs", []):
        assert re.search(r":size=\d+[mg],", mount), f"{mount} has no size"
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert source in COMPOSE["volumes"], "only named volumes, nothing of the host"


def test_only_the_public_port_is_published_and_on_loopback() -> None:
    published = {name: entry["ports"] for name, entry in SERVICES.items() if "ports" in entry}
    assert set(published) == {"gateway", "gateway-gpu"}
    for ports in published.values():
        assert ports == ["127.0.0.1:${BATON_PORT:-8000}:8000"]


def test_a_service_sees_its_own_secret_only() -> None:
    for name, service in SERVICES.items():
        secrets = [v for v in service.get("volumes", []) if "secret" in v]
        role = name.removesuffix("-gpu").removesuffix("-1")
        if role not in {"nats", "anchor", "elastic"}:
            assert secrets == [f"{role}-secret:/secrets/own:ro"]


def test_health_comes_before_dependence_and_drain_before_the_kill() -> None:
    for name, service in SERVICES.items():
        if name.startswith("anchor"):
            continue
        assert "services.probe" in service["healthcheck"]["test"]
        if name != "nats":
            assert service["depends_on"]
            assert service["stop_grace_period"] == "75s"


def test_gpus_are_reserved_with_their_capability() -> None:
    for name in ("anchor-gpu", "prefill-gpu", "decode-gpu", "kvpool-gpu"):
        devices = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    for name in ("prefill-gpu", "decode-gpu", "kvpool-gpu"):
        assert SERVICES[name]["ipc"] == SERVICES[name]["pid"] == "service:anchor-gpu"
    assert SERVICES["anchor-gpu"]["ipc"] == "shareable"


def test_the_image_is_built_from_debian_and_runs_as_nobody_special() -> None:
    recipe = (ROOT / "ops" / "docker" / "Dockerfile").read_text("utf-8")
    bases = [line.split()[1] for line in recipe.splitlines() if line.startswith("FROM ")]
    assert set(bases) == {"debian:bookworm-slim"}
    users = [line for line in recipe.splitlines() if line.startswith("USER ")]
    assert users == ["USER 10001:10001"]
    assert "ADD " not in recipe


def test_the_build_context_is_an_allow_list() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").split()
    assert lines[0] == "*"
    allowed = {PurePosixPath(line[1:]).parts[0] for line in lines if line.startswith("!")}
    assert allowed <= {"services", "shared", "kernels", "loadgen", "ops", "requirements-*.lock"}
