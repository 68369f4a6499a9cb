"""A worker that ends with status 75 is started in its other role: here, and in a container."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from services import worker
from services.local import LocalCluster, LocalSettings
from services.member import Member, Surroundings
from services.run_folder import RunFolder
from services.topology import DEFAULT, Group
from shared.errors import StartupError
from shared.runtime.turning import EXIT_TURNED


def script(text: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", text])


class Starts:
    """Stands for the services: each start ends with the next of these exit codes."""

    def __init__(self, *codes: int) -> None:
        self.commands: list[Sequence[str]] = []
        self._codes = list(codes)

    def __call__(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        self.commands.append(command)
        return script(f"import sys; sys.exit({self._codes.pop(0)})")

    @property
    def modules(self) -> list[str]:
        return [command[2] for command in self.commands]


def test_a_container_serves_the_other_role_each_time_its_worker_turns() -> None:
    starts = Starts(EXIT_TURNED, EXIT_TURNED, EXIT_TURNED, 3)
    assert worker.Keeper("decode", "secrets", ["--host=h"], starts).run() == 3
    roles = ["decode", "prefill", "decode", "prefill"]
    assert starts.modules == [f"services.{role}" for role in roles]
    for role, command in zip(roles, starts.commands, strict=True):
        assert f"--nats-credentials-file=secrets/{role}/nats.json" in command
        assert "--switchable=true" in command and command[-1] == "--host=h"


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_container_ends_as_its_worker_ends(code: int) -> None:
    starts = Starts(code)
    assert worker.Keeper("prefill", "secrets", [], starts).run() == code
    assert len(starts.commands) == 1


def test_a_container_that_is_told_to_stop_starts_nothing_more() -> None:
    starts = Starts(EXIT_TURNED, 0)
    keeper = worker.Keeper("decode", "secrets", [], starts)

    def told_meanwhile(command: Sequence[str]) -> subprocess.Popen[bytes]:
        child = starts(command)
        child.wait()
        keeper.signalled(signal.SIGTERM, None)
        return child

    keeper._start = told_meanwhile
    assert keeper.run() == 0
    assert len(starts.commands) == 1


def test_a_signal_between_two_workers_reaches_the_next_one() -> None:
    keeper = worker.Keeper("decode", "secrets", [], lambda _: script("import time; time.sleep(60)"))
    keeper.signalled(signal.SIGTERM, None)
    assert keeper.run() == -signal.SIGTERM


@pytest.mark.parametrize("argv", [[], ["decode"], ["gateway", "secrets"]])
def test_how_it_is_called_is_said_in_one_line(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert worker.main(argv) == 2
    assert capsys.readouterr().err.startswith("usage: python -m services.worker")


def around(folder: Path) -> Surroundings:
    secrets = {role: folder / f"{role}.json" for role in ("prefill", "decode")}
    return Surroundings(
        folder=RunFolder(folder),
        model_path="hashchain",
        nats_url="nats://127.0.0.1:1",
        credentials=secrets,
        traces_port=1,
        environment={},
    )


def test_a_member_keeps_name_and_device_and_takes_the_other_roles_settings(tmp_path: Path) -> None:
    mine = Group(role="prefill", devices=("cuda:0", "cuda:3"))
    other = Group(role="decode", devices=("cuda:7",), settings=(("max_sequences", 9),))
    member = Member(mine, 1, around(tmp_path), other)
    before = list(member.child._argv)
    assert member.turn() and (member.name, member.role) == ("prefill-1", "decode")
    after = list(member.child._argv)
    assert {"services.prefill", "--device=cuda:3", "--switchable=true"} <= set(before)
    assert {"services.decode", "--device=cuda:3", "--max-sequences=9"} <= set(after)
    assert "--worker-id=prefill-1" in after
    assert f"--nats-credentials-file={tmp_path / 'decode.json'}" in after
    assert member.turn() and list(member.child._argv) == before


def test_a_member_without_another_role_stays_what_it_is(tmp_path: Path) -> None:
    member = Member(Group(role="prefill"), 0, around(tmp_path))
    assert not member.turn() and member.role == "prefill"
    assert "--switchable=true" not in member.child._argv


class Broken(LocalCluster):
    """Nothing starts here."""

    async def restart(self, name: str) -> None:
        raise StartupError(f"{name} does not start")


async def test_what_does_not_come_up_in_the_other_role_goes_back_to_its_own(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    settings = LocalSettings(topology=DEFAULT, model_path="hashchain", run_dir=tmp_path)
    cluster = Broken(settings, said.append)
    member = Member(Group(role="decode"), 0, around(tmp_path), Group(role="prefill"))
    assert not await cluster._turned(member)
    assert member.role == "decode"
    assert said == ["decode-0 serves prefill from now on", "decode-0 does not start"]
