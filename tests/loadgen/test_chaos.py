"""The chaos tool: it touches only what a run folder names, judges honestly, and works on a cluster
that is really running.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadgen import __main__ as command_line
from loadgen import chaos
from loadgen.chaos_cluster import nats_pid, read_folder, strike
from loadgen.chaos_faults import FAULTS
from loadgen.chaos_report import Findings, Watched
from loadgen.records import Row
from services.local import LocalCluster, LocalSettings
from shared.errors import StartupError
from tests.e2e.cluster import Wish

# -- whom it touches ---------------------------------------------------------------------------


def described(folder: Path, **changed: object) -> None:
    entry = {"role": "decode", "worker": "decode-0", "pid": os.getpid()}
    entry |= {"probe_url": "http://127.0.0.1:1"} | changed
    (folder / "decode-0.json").write_text(json.dumps(entry))


def test_a_process_that_is_no_service_is_never_touched(tmp_path: Path) -> None:
    """This test has that pid, but is no decode worker."""
    described(tmp_path)
    with pytest.raises(StartupError, match="no cluster runs"):
        read_folder(tmp_path)
    with pytest.raises(StartupError, match="no cluster runs"):
        strike(tmp_path, "decode-0", signal.SIGKILL)


@pytest.mark.parametrize("url", ["http://192.0.2.1:80", "http://example.net", "nothing"])
def test_only_this_host(tmp_path: Path, url: str) -> None:
    described(tmp_path, probe_url=url)
    with pytest.raises(StartupError, match="not on this host"):
        read_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"role": 1}', "\xff"])
def test_foreign_files_are_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text, "latin-1")
    with pytest.raises(StartupError, match="does not describe a service"):
        read_folder(tmp_path)


def test_no_bus_of_that_folder(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no nats-server"):
        nats_pid(tmp_path)


# -- how it judges -----------------------------------------------------------------------------


def stream(text: str, outcome: str = "ok", reason: str = "") -> Watched:
    row = Row(0, 0, 0.0, "", outcome=outcome, reason=reason, finish="length")
    row.output_tokens = len(text)
    watched = Watched(row)
    for at, piece in enumerate(text):
        watched.take(piece, 0.1 * at)
    return watched


def findings(hit: Watched, calm: Watched, **changed: object) -> Findings:
    fields: dict[str, object] = {"fault": "kill-decode", "victim": "decode-0", "recovered_s": 1.0}
    return Findings(**(fields | {"disturbed": [hit], "calm": [calm]} | changed))  # type: ignore[arg-type]


def test_equal_streams_are_good() -> None:
    found = findings(stream("abc"), stream("abc"))
    assert found.good and json.loads(found.line()) == {
        "bench": "chaos",
        "fault": "kill-decode",
        "victim": "decode-0",
        "streams": 1,
        "lost": 0,
        "wrong": 0,
        "longest_gap_ms": 100.0,
        "calm_longest_gap_ms": 100.0,
        "recovery_ms": 1000.0,
        "leaks": 0,
        "ok": True,
    }


def test_what_is_not_good() -> None:
    calm = stream("abc")
    wrong = findings(stream("abd"), calm)
    assert wrong.wrong == 1 and not wrong.lost and not wrong.good
    lost = findings(stream("ab", "error", "worker_lost"), calm)
    assert len(lost.lost) == 1 and not lost.wrong and not lost.good
    assert "worker_lost" in lost.table()
    both = findings(stream("xx", "broken"), calm)
    assert both.wrong == 1 and len(both.lost) == 1
    assert not findings(calm, calm, recovered_s=None).good
    leaking = findings(calm, calm, leaks={"decode-0": {"held_pages": 3}})
    assert not leaking.good and "held_pages" in leaking.table()
    assert "NOT VALID" in findings(calm, stream("a", "broken")).table()


async def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    options = command_line.parser().parse_args(["chaos", "--list"])
    assert await options.call(options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(FAULTS)


async def test_no_cluster_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["chaos", "--fault", "kill-decode", "--run-dir", str(tmp_path)]
    options = command_line.parser().parse_args(arguments)
    assert await options.call(options) == chaos.EXIT_USAGE
    assert "no cluster runs" in capsys.readouterr().err


# -- on a running cluster ----------------------------------------------------------------------


@asynccontextmanager
async def supervised(folder: Path) -> AsyncIterator[LocalCluster]:
    """A cluster whose supervisor starts again what dies."""
    wish = Wish(prefill=2, decode=2, shared={"lease_s": 3.0})
    environment = {key: text for key, text in os.environ.items() if not key.startswith("BATON_")}
    local = LocalCluster(
        LocalSettings(
            topology=wish.topology(),
            model_path=wish.model,
            run_dir=folder / "run",
            drain_s=15.0,
            environment=environment,
        ),
        lambda text: None,
    )
    await local.start()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(local.supervise(stop), name="supervisor")
        try:
            yield local
        finally:
            stop.set()


@pytest.mark.process
async def test_kills_and_pauses_that_nobody_notices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with supervised(tmp_path) as local:
        for seed, fault in enumerate(("kill-decode", "kill-prefill", "stop-nats")):
            arguments = ["chaos", "--fault", fault, "--run-dir", str(local.folder.path)]
            arguments += ["--base-url", local.url, "--streams", "6", "--output-len", "400"]
            arguments += ["--seed", str(seed), "--fault-seconds", "2"]
            options = command_line.parser().parse_args(arguments)
            code = await options.call(options)
            shown = capsys.readouterr()
            print(shown.out)
            line = json.loads(shown.out.splitlines()[-1])
            assert code == 0 and line["ok"], shown
            assert (line["streams"], line["lost"], line["wrong"], line["leaks"]) == (6, 0, 0, 0)
            assert line["recovery_ms"] > 0
