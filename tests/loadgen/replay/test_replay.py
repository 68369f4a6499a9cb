"""A live scheduler's log comes out the same again; another policy answers differently."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import orjson
import pytest

from loadgen.__main__ import parser
from loadgen.replay import again, world
from loadgen.replay.again import LogError
from services.scheduler.app import SchedulerApp
from services.scheduler.config import SchedulerConfig
from services.scheduler.core import event_log
from services.scheduler.core import events as ev
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.errors import WireError
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.wire import codec, subjects
from shared.wire.blocks import BlocksStored
from shared.wire.requests import Placement, PlacementEnded
from tests.builders import running, scope_on, start, until
from tests.services.scheduler.builders import ask, beat, names

_WORKERS = ("prefill-0", "prefill-1", "decode-0", "decode-1")
_ASKED = 12


async def _live(folder: Path) -> Path:
    """The real shell on a bus: workers report, blocks are stored, requests are placed and end."""
    path = folder / "scheduler-0.events"
    config = SchedulerConfig(
        worker_id="scheduler-0",
        heartbeat_s=0.1,
        lost_after_s=30.0,
        otlp_endpoint=None,
        event_log=str(folder / "{worker}.events"),
    )
    broker = MemoryBroker()
    async with running() as tasks:
        scope = scope_on(broker, tasks, "scheduler", config, folder)
        app = SchedulerApp(scope, config)
        await start(app, scope)
        for worker in _WORKERS:
            role = worker.split("-")[0]
            bus = MemoryBus(broker, worker, role)
            await bus.publish(subjects.heartbeat(role, WorkerId(worker)), beat(worker), Headers())
        await until(lambda: len(app.accounting()["workers"]) == 4)  # type: ignore[arg-type]
        holder = MemoryBus(broker, "prefill-1", "prefill")
        name = WorkerId("prefill-1")
        stored = BlocksStored(name, Epoch(1), 1, "device", None, names(1, 2, 3))
        await holder.publish(subjects.block_events("prefill", name), stored, Headers())
        gateway = MemoryBus(broker, "gateway-0", "gateway")
        for number in range(_ASKED):
            hashes = names(1, 2, 3, *range(10 * number + 10, 10 * number + 13))
            wish = ask(f"r{number}", tokens=100, hashes=hashes)
            reply = await gateway.request(subjects.PLACE, wish, Headers(), 5.0)
            assert isinstance(reply, Placement)
            ended = PlacementEnded(RequestId(f"r{number}"), Attempt(1), "finished", emitted=7)
            if number % 2:
                await gateway.publish(subjects.PLACEMENT_ENDED, ended, Headers())
        await until(lambda: app.accounting()["charges"] == _ASKED)
        await app.drain()
        await until(lambda: app._log is None)
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(_live(tmp_path_factory.mktemp("live")))


def test_a_live_log_comes_out_the_same_byte_for_byte(log: Path) -> None:
    played = again.play(log)
    assert played.asked == _ASKED
    assert played.same_lines == played.events > _ASKED
    assert played.first_difference == ""
    assert played.then == played.now


def test_another_process_with_another_order_of_hashes_agrees(log: Path) -> None:
    command = [sys.executable, "-m", "loadgen", "sim", "replay", str(log)]
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert orjson.loads(run.stdout.splitlines()[-1])["same"] is True


def _sim(*flags: str) -> int:
    options = parser().parse_args(["sim", *flags])
    return int(asyncio.run(options.call(options)))


def test_what_another_policy_would_have_done(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "captured.jsonl"
    assert _sim("replay", str(log), "--policy", "round_robin", "--workload-out", str(out)) == 0
    line = orjson.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["asked"] == _ASKED
    assert line["same_places"] < _ASKED
    assert line["own"].keys() == line["other"].keys()
    assert line["own"]["attainment"] == line["other"]["attainment"] == 1.0
    assert line["own"]["hit"] > 0
    assert _sim("run", "--workload", str(out), "--block-tokens", "16") == 0


def test_a_log_tells_its_workload_and_its_fleet(log: Path) -> None:
    found = world.read(log)
    assert (found.design.prefills, found.design.decodes) == (2, 2)
    assert found.design.prefill.token_s == 0.001
    rows = found.workload.requests
    assert len(rows) == _ASKED
    assert {row.prompt_tokens for row in rows} == {100}
    assert [row.output_tokens for row in rows] == [32, 7] * (_ASKED // 2)
    assert rows[1].blocks[:3] == rows[0].blocks[:3]
    assert found.workload.ideal_hit == pytest.approx(11 * 48 / 1_200)


def test_a_changed_decision_is_found(log: Path, tmp_path: Path) -> None:
    text = log.read_bytes().replace(b'"route":"disaggregated"', b'"route":"colocated"', 1)
    path = tmp_path / "changed.events"
    path.write_bytes(text)
    played = again.play(path)
    assert played.same_lines == played.events - 1
    assert played.first_difference.endswith("PlaceRequest")
    assert _sim("replay", str(path)) == 1


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:20]], "cut off"),
        (lambda lines: [b"{}\n", *lines[1:]], "line 1: this is no event log"),
        (lambda lines: [lines[0], b"nonsense\n"], "line 2: not JSON"),
        (lambda lines: [lines[0], b'{"at":"x","t":"Tick","m":{},"a":[]}\n'], "at is not a number"),
        (lambda lines: [lines[0], b'{"at":1,"t":"Tick","m":{"x":1},"a":[]}\n'], "other fields"),
        (lambda lines: [lines[0], b'{"at":1,"t":"Ghost","m":{},"a":[]}\n'], "not registered"),
        (lambda lines: [], "empty"),
    ],
)
def test_a_wrong_log_names_its_line(log: Path, tmp_path: Path, spoil: object, text: str) -> None:
    assert callable(spoil)
    path = tmp_path / "wrong.events"
    path.write_bytes(b"".join(spoil(log.read_bytes().splitlines(keepends=True))))
    with pytest.raises(LogError, match=text):
        again.play(path)


def test_every_kind_of_event_can_be_in_a_log() -> None:
    own = {kind.__name__ for kind in get_args(ev.Event)} - codec.REGISTRY.keys()
    assert own == event_log._OWN.keys()
    for event in (
        ev.Tick(),
        ev.LeadTaken(Epoch(3)),
        ev.SwitchAnswered(WorkerId("w"), Epoch(2), ""),
    ):
        assert event_log.read_entry(event_log.entry(1.5, event, [])).event == event


def test_settings_of_another_version_are_refused(log: Path) -> None:
    settings, seed = again.settings(log)
    assert seed == 0
    line = event_log.opening(settings, 5)
    assert event_log.read_opening(line) == (settings, 5)
    assert replace(settings, route="colocated") != settings
    with pytest.raises(WireError, match="another version"):
        event_log.read_opening(line.replace(b'"lost_after_s"', b'"lost_after_m"'))


def test_a_log_without_placements_has_no_world(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.events"
    path.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(LogError, match="no request was placed"):
        world.read(path)
