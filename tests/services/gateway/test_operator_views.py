"""The admin port as the pages use it: files, headers, who may ask, and bounded JSON."""

from __future__ import annotations

import csv
import hashlib
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.gateway import cluster_watch
from services.gateway.page_files import FOLDER, PageFiles
from services.gateway.run_results import RunResults
from services.gateway.trace_logs import find_lines
from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.errors import ClientError, RefusedError
from shared.ids import Epoch, WorkerId
from shared.runtime.figures import FiguresDesk
from shared.telemetry.metrics import Metrics
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.views import (
    MOST_SAMPLES,
    AskCluster,
    AskFigures,
    ClusterSeen,
    Holder,
    PrefixSeen,
    WorkerSeen,
)
from shared.wire.workers import CostModel, WorkerLoad
from tests.services.gateway.rig import Rig, rig

PAGES = ("/", "/traces", "/traces/abc", "/runs", "/runs/abc", "/prefixes")


def seen(name: str = "decode-0", epoch: int = 1, state: str = "ready") -> WorkerSeen:
    load, cost = WorkerLoad(1, 64, 2, 0.5, 100, 75, 0), CostModel(2e-3, 1e-3, 0.0, 1e-2, 1e-3)
    role = name.split("-")[0]
    return WorkerSeen(
        WorkerId(name), role, Epoch(epoch), state, 0.2, "m", 64, 16, load, cost, 5, 25
    )


class Leader:
    """A scheduler that tells what it is told to tell."""

    def __init__(self, *workers: WorkerSeen) -> None:
        self.workers = workers
        self.asked: list[int] = []

    async def answer(self, delivery: Delivery) -> Message:
        ask = delivery.message
        assert isinstance(ask, AskCluster)
        self.asked.append(ask.prefixes)
        prefix = PrefixSeen("ab" * 16, 24, 1.5, 1, (Holder(WorkerId("prefill-0"), "device"),))
        return ClusterSeen(
            WorkerId("scheduler-0"),
            Epoch(3),
            self.workers,
            0,
            (prefix,)[: ask.prefixes],
            25,
            4_096,
        )


async def lead(gateway: Rig, leader: Leader) -> None:
    bus = MemoryBus(gateway.broker, "scheduler-9", "scheduler")
    await bus.subscribe(subjects.CLUSTER, leader.answer)


async def get(gateway: Rig, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.http.get(gateway.admin_url + path, headers=sent) as answer:
        named = {name.lower(): value for name, value in answer.headers.items()}
        return answer.status, named, await answer.read()


async def view(gateway: Rig, path: str) -> Any:
    status, _, body = await get(gateway, path)
    assert status == 200, body
    return orjson.loads(body)


# -- files ---------------------------------------------


async def test_pages_come_with_strict_headers_and_from_memory(tmp_path: Path) -> None:
    async with rig(tmp_path) as gateway:
        for path in PAGES:
            status, headers, body = await get(gateway, path)
            assert status == 200 and body.startswith(b"<!doctype html>"), path
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
        status, headers, _ = await get(gateway, "/pages/cluster.js")
        assert headers["content-type"].startswith("text/javascript")
        status, _, body = await get(gateway, "/pages/cluster.js", If_None_Match=headers["etag"])
        assert (status, body) == (304, b"")
        for path in ("/pages/nothing.js", "/pages/../app.py", "/pages/%2e%2e/app.py", "/pages/"):
            assert (await get(gateway, path))[0] == 404, path


def test_pages_hold_no_inline_code_and_name_no_other_host() -> None:
    for path in (found for found in FOLDER.iterdir() if found.is_file()):
        text = path.read_text("utf-8")
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), path.name
        assert "https://" not in text and "innerHTML" not in text, path.name
        if path.suffix == ".html":
            assert " style=" not in text and " onclick=" not in text
            ours = re.findall(r'<script (?:defer |type="module" )?src="/pages/', text)
            assert text.count("<script") == len(ours)
    assert PageFiles().size_bytes < 200_000


def test_vendored_files_are_as_their_author_published_them() -> None:
    published = {
        "uPlot.LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }
    vendor = FOLDER / "vendor"
    assert {path.name for path in vendor.iterdir()} == {"README.md", *published}
    for name, digest in published.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest, name


async def test_other_sites_and_other_names_are_turned_away(tmp_path: Path) -> None:
    async with rig(tmp_path) as gateway:
        for path in ("/", "/admin/cluster", "/pages/cluster.js"):
            assert (await get(gateway, path, Host="evil.example"))[0] == 404
            assert (await get(gateway, path, Sec_Fetch_Site="cross-site"))[0] == 404
            assert (await get(gateway, path, Sec_Fetch_Site="same-origin"))[0] == 200


# -- the cluster ---------------------------------------------


async def test_without_a_scheduler_the_view_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path) as gateway:
        found = await view(gateway, "/admin/cluster")
        assert found["problem"] == "no scheduler answers" and found["workers"] == []
        names = {sample["name"] for sample in found["gateway"]}
        assert "baton_requests_running" in names
        assert (await view(gateway, "/admin/prefixes"))["prefixes"] == []


async def test_the_cluster_comes_from_scheduler_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_watch, "FRESH_S", 0.0)
    async with rig(tmp_path) as gateway:
        leader = Leader(seen(), seen("prefill-0"))
        await lead(gateway, leader)
        counted = Metrics()
        counted.gauge("baton_pages", "Pages.", ("state",)).labels("cached").set(7)
        counted.counter("baton_secret_total", "Not asked for.").inc()
        worker = MemoryBus(gateway.broker, "decode-0", "decode")
        subject = subjects.figures("decode", WorkerId("decode-0"))
        await worker.subscribe(subject, FiguresDesk(counted).answer)
        found = await view(gateway, "/admin/cluster")
        assert found["problem"] == "" and found["scheduler"] == {
            "leader": "scheduler-0",
            "epoch": 3,
        }
        by_name = {entry["worker"]: entry for entry in found["workers"]}
        assert by_name["decode-0"]["load"]["queued_tokens"] == 64
        assert by_name["decode-0"]["figures"] == [
            {"name": "baton_pages", "labels": {"state": "cached"}, "value": 7.0}
        ]
        assert by_name["prefill-0"]["figures"] is None
        assert found["changes"] == []
        leader.workers = (seen(epoch=2), seen("prefill-0", state="draining"), seen("kvpool-0"))
        changes = (await view(gateway, "/admin/cluster"))["changes"]
        assert {(change["worker"], change["what"]) for change in changes} == {
            ("decode-0", "began epoch 2"),
            ("prefill-0", "is draining"),
            ("kvpool-0", "joined"),
        }
        (prefix,) = (await view(gateway, "/admin/prefixes"))["prefixes"]
        assert prefix["holders"] == [{"worker": "prefill-0", "tier": "device"}]
        assert leader.asked[-1] > 0 == leader.asked[0]


async def test_many_viewers_ask_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "FRESH_S", 3600.0)
    monkeypatch.setattr(cluster_watch, "LOOK_S", 3600.0)
    async with rig(tmp_path) as gateway:
        leader = Leader(seen())
        await lead(gateway, leader)
        for _ in range(5):
            await view(gateway, "/admin/cluster")
        assert len(leader.asked) == 1


async def test_figures_are_bounded_and_of_what_was_asked_for() -> None:
    metrics = Metrics()
    many = metrics.gauge("baton_many", "Many.", ("label",))
    for number in range(MOST_SAMPLES + 9):
        many.labels(str(number)).set(float("nan") if number == 0 else number)
    metrics.histogram("baton_step_seconds", "Steps.").observe(0.5)
    desk = FiguresDesk(metrics)

    async def ask(*names: str) -> Any:
        return await desk.answer(Delivery("s", AskFigures(names), Headers()))

    assert len((await ask("baton_many")).samples) == MOST_SAMPLES
    steps = {sample.name: sample.value for sample in (await ask("baton_step_seconds")).samples}
    assert steps == {"baton_step_seconds_count": 1.0, "baton_step_seconds_sum": 0.5}
    assert (await ask("baton_nothing", "process_cpu_seconds_total")).samples == ()
    with pytest.raises(RefusedError):
        await desk.answer(Delivery("s", AskCluster(1), Headers()))


# -- runs and logs ---------------------------------------------


def write_run(folder: Path, name: str, ttft_s: float, rows: int = 40) -> None:
    path = folder / name
    path.mkdir(parents=True)
    document = {"schema": "baton.run/1", "source": "live", "metrics": {"ttft_ms": {"p50": 1.0}}}
    (path / "run.json").write_bytes(orjson.dumps(document))
    with (path / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["number", "trace_id", "outcome", "ttft_s", "e2e_s"])
        writer.writeheader()
        for number in range(rows):
            took = ttft_s * (1 + number / 100)
            fields = {"number": number, "trace_id": f"{number:032x}", "outcome": "ok"}
            writer.writerow({**fields, "ttft_s": took, "e2e_s": 1.0 + number % 7 / 100})


def test_runs_are_listed_shown_and_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "slow", 0.2)
    write_run(tmp_path, "fast", 0.1)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text('{"schema": ')
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "run.json").write_text('{"schema": "other/9"}')
    (tmp_path / "no-run").mkdir()
    results = RunResults(str(tmp_path))
    listed = {run["id"]: run["problem"] for run in results.list()}
    assert listed == {
        "slow": "",
        "fast": "",
        "broken": "run.json cannot be read",
        "foreign": "run.json is not of a version that is known here",
    }
    one = results.one("slow")
    assert one["rows"] == 40 and one["worst"][0]["number"] == "39"
    assert one["curves"]["ttft_s"][-1] == (pytest.approx(0.278), 1.0)
    assert one["curves"]["tpot_s"] == []
    figures = {entry["name"]: entry for entry in results.compare("slow", "fast")["figures"]}
    assert figures["ttft_s"]["verdict"] == "the second is faster" and figures["ttft_s"]["high"] < 0
    assert figures["e2e_s"]["verdict"] == "no difference shown"
    assert figures["tpot_s"]["verdict"].startswith("too few")
    assert results.compare("fast", "slow")["figures"][0]["verdict"] == "the second is slower"
    assert results.compare("fast", "slow") == results.compare("fast", "slow")


def test_a_run_tells_whether_to_believe_it_and_leaves_out_its_warming_up(tmp_path: Path) -> None:
    write_run(tmp_path, "run", 0.2)
    said = {
        "schema": "baton.run/1",
        "client": {"limited": True, "reasons": ["late " * 100, 7]},
        "warnings": ["capped"],
        "goodput": {"slo": "ttft:5", "attainment": 0.5},
        "interrupted": True,
    }
    (tmp_path / "run" / "run.json").write_bytes(orjson.dumps(said))
    rows = (tmp_path / "run" / "requests.csv").read_text().splitlines()
    phases = ["phase", "warmup", *["measured"] * 39]
    marked = (f"{row},{phase}\n" for row, phase in zip(rows, phases, strict=True))
    (tmp_path / "run" / "requests.csv").write_text("".join(marked))
    one = RunResults(str(tmp_path)).one("run")
    assert one["rows"] == 39 and one["limited"] == [("late " * 100)[:200], "7"]
    assert one["warnings"] == ["capped"] and one["goodput"]["attainment"] == 0.5
    assert one["interrupted"] is True
    odd = {"schema": "baton.run/1", "client": [], "warnings": {}, "goodput": 3, "interrupted": 1}
    (tmp_path / "run" / "run.json").write_bytes(orjson.dumps(odd))
    one = RunResults(str(tmp_path)).one("run")
    assert (one["limited"], one["warnings"], one["goodput"]) == ([], [], {})
    assert one["interrupted"] is False


@pytest.mark.parametrize("name", ["..", ".", "../runs/slow", "slow/..", "", "nobody", "linked"])
def test_a_name_never_leaves_the_folder(tmp_path: Path, name: str) -> None:
    runs = tmp_path / "runs"
    write_run(runs, "slow", 0.2)
    write_run(tmp_path, "outside", 0.2)
    (runs / "linked").symlink_to(tmp_path / "outside")
    with pytest.raises(ClientError):
        RunResults(str(runs)).one(name)


async def test_runs_are_off_unless_a_folder_is_set(tmp_path: Path) -> None:
    async with rig(tmp_path) as gateway:
        assert (await view(gateway, "/admin/runs"))["off"] is True
        assert (await get(gateway, "/admin/runs/slow"))[0] == 404
    write_run(tmp_path / "runs", "slow", 0.2)
    async with rig(tmp_path, runs_dir=str(tmp_path / "runs")) as gateway:
        assert [run["id"] for run in (await view(gateway, "/admin/runs"))["runs"]] == ["slow"]
        assert (await view(gateway, "/admin/runs/slow"))["rows"] == 40
        assert (await view(gateway, "/admin/runs/slow?with=slow"))["second"] == "slow"
        assert (await get(gateway, "/admin/runs/slow?with=nobody"))[0] == 404
    async with rig(tmp_path, runs_dir=str(tmp_path / "gone")) as gateway:
        assert "cannot be read" in (await view(gateway, "/admin/runs"))["problem"]


def test_log_lines_are_found_by_id_in_the_ends_of_files(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    lines = [
        b'{"ts":"2026-01-01T00:00:02Z","worker":"decode-0","event":"b","request":"req-12345"}',
        b'{"ts":"2026-01-01T00:00:01Z","worker":"decode-0","event":"a","request":"req-12345"}',
        b'{"ts":"2026-01-01T00:00:03Z","worker":"decode-0","event":"c","request":"other"}',
        b"no json at all about req-12345 \xff",
    ]
    (logs / "decode-0.log").write_bytes(b"x" * 3_000_000 + b"\n" + b"\n".join(lines))
    found = find_lines(str(tmp_path), ("req-12345", ""))
    assert [line["event"] for line in found["lines"]] == [
        "no json at all about req-12345 \ufffd", "a", "b",
    ]  # fmt: skip
    assert found["searched"] == 1 and not found["more"]
    assert find_lines("", ("req-12345",)) == {"searched": 0, "lines": [], "more": False}
    assert find_lines(str(tmp_path / "none"), ("req-12345",))["searched"] == 0
