"""The compose project under test: brought up, looked into through the Docker SDK, taken down."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

import docker

from services.fetch import PACKAGE
from tests.architecture.sources import ROOT

IMAGE: Final = "baton:cpu"
DEFAULT_HOST: Final = "unix:///var/run/docker.sock"
UP_S: Final = 400
_POLL_S: Final = 0.5


def why_not() -> str:
    """Empty when these tests can run here, else the reason to skip."""
    if compose_command() is None:
        return "neither docker-compose nor docker compose is installed"
    if not _listens():
        return "no Docker engine runs here"
    try:
        client = docker.from_env(timeout=10)
        client.ping()
    except docker.errors.DockerException:
        return "the Docker engine does not answer"
    client.close()
    return ""


def _listens() -> bool:
    """Knock first: the SDK leaves its socket open when an ended engine's file is still there."""
    host = os.environ.get("DOCKER_HOST", DEFAULT_HOST)
    if not host.startswith("unix://"):
        return True
    with socket.socket(socket.AF_UNIX) as knock:
        return knock.connect_ex(host.removeprefix("unix://")) == 0


def compose_command() -> list[str] | None:
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    try:
        done = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return ["docker", "compose"] if done.returncode == 0 else None


@dataclass(slots=True)
class Project:
    """One `docker-compose --profile cpu` under its own project name and port."""

    client: Any
    name: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def build(self) -> None:
        """As `make image` does: from wheels that this machine's pip has brought."""
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        download += ["--dest", str(ROOT / "ops" / "docker" / "wheels")]
        for wanted in (["--require-hashes", "-r", "requirements-cpu.lock"], [PACKAGE]):
            subprocess.run([*download, *wanted], cwd=ROOT, check=True)
        self.client.images.build(
            path=str(ROOT),
            dockerfile="ops/docker/Dockerfile",
            tag=IMAGE,
            buildargs={"PROFILE": "cpu"},
            network_mode="host",
            rm=True,
        )

    def compose(self, *arguments: str) -> None:
        command = [*(compose_command() or []), "--project-name", self.name, "--profile", "cpu"]
        environment = os.environ | {"BATON_PORT": str(self.port)}
        done = subprocess.run(
            [*command, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def containers(self) -> dict[str, Any]:
        """By service name; stopped ones too."""
        wanted = {"label": f"com.docker.compose.project={self.name}"}
        found = self.client.containers.list(all=True, filters=wanted)
        return {one.labels["com.docker.compose.service"]: one for one in found}

    def until_healthy(self) -> None:
        give_up_s = time.monotonic() + UP_S
        while states := {
            name: one.attrs["State"]["Health"]["Status"]
            for name, one in self.containers().items()
            if one.attrs["State"]["Health"]["Status"] != "healthy"
        }:
            assert time.monotonic() < give_up_s, f"{states}\n{self.logs()}"
            time.sleep(_POLL_S)

    def run(self, service: str, *command: str) -> tuple[int, str]:
        """Exit code and output of a command in a running container."""
        done = self.containers()[service].exec_run(list(command))
        return int(done.exit_code), done.output.decode("utf-8", "replace")

    def logs(self) -> str:
        tails = (f"--- {n}\n{c.logs(tail=5).decode()}" for n, c in self.containers().items())
        return "\n".join(tails)
