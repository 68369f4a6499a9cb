"""How runs end badly: interrupted, unreachable, without a disk, without a client process. What was
seen by then is kept, and what is said tells what to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.sources import ROOT
from tests.loadgen.load.conftest import Run, Serve, rows_of


@contextlib.contextmanager
def started(url: str, folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own."""
    words = ("--base-url", url, "--admin-url", "", "--result-dir", str(folder), *flags)
    command = [sys.executable, "-m", "loadgen", "run", *words, "--result-filename", "run"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until_rows(folder: Path, least: int) -> None:
    """Both client processes have written so many."""
    give_up_s = time.monotonic() + 60
    while time.monotonic() < give_up_s:
        lines = [len(part.read_bytes().splitlines()) - 1 for part in folder.glob("run/rows-*.csv")]
        if len(lines) == 2 and min(lines) >= least:
            return
        time.sleep(0.05)
    pytest.fail("no rows were written")


def test_an_interrupted_run_writes_what_it_has(scripted: Serve, tmp_path: Path) -> None:
    flags = ("--num-prompts", "100000", "--request-rate", "100", "--output-len", "3")
    with started(scripted(), tmp_path, *flags, "--processes", "2") as process:
        until_rows(tmp_path, 10)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "requests " in said
    rows = rows_of(tmp_path / "run")
    assert len(rows) >= 20 and {row["outcome"] for row in rows} <= {"ok", "incomplete"}
    assert {row["reason"] for row in rows if row["outcome"] != "ok"} <= {
        "interrupted", "not sent: interrupted",
    }  # fmt: skip
    document = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert document["interrupted"] and document["metrics"]["requests"] == len(rows)
    assert "Interrupted" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_the_death_of_a_client_process_costs_its_rows_alone(
    scripted: Serve, tmp_path: Path
) -> None:
    flags = ("--num-prompts", "100000", "--request-rate", "100", "--output-len", "3")
    with started(scripted(), tmp_path, *flags, "--processes", "2") as process:
        until_rows(tmp_path, 10)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii")
        os.kill(int(children.split()[1]), signal.SIGKILL)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130 and "client process 1 died" in complaint
    rows = rows_of(tmp_path / "run")
    assert {int(row["number"]) % 2 for row in rows} == {0, 1}, "what it had flushed is kept"


def test_a_server_that_is_not_there(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("http://127.0.0.1:9") == 1
    assert "127.0.0.1:9 cannot be reached" in capsys.readouterr().err


def test_a_server_that_is_something_else(
    scripted: Serve, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = scripted("--fault", "odd-models", "--ttft-ms", "1", "--tpot-ms", "1")
    assert run(url) == 1
    assert "does not list models" in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert run(url, "--model", "x", "--num-prompts", "2", "--request-rate", "inf") in (0, 3)


def test_a_server_that_goes_away_is_rows(run: Run, tmp_path: Path) -> None:
    """The model is named, so nobody asks before the load."""
    code = run("http://127.0.0.1:9", "--model", "m", "--num-prompts", "3", "--request-rate", "inf")
    rows = rows_of(tmp_path / "run")
    assert code == 5 and {row["outcome"] for row in rows} == {"error"}
    assert all(row["reason"].startswith("cannot connect: ") for row in rows)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--goodput", "ttft=500"), "expected NAME:MILLISECONDS"),
        (("--request-rate", "0"), "--request-rate must be above 0"),
        (("--request-rate", "nan"), "--request-rate must be above 0"),
        (("--arrival", "often"), "expected one of poisson, constant, gamma"),
        (("--arrival", "closed"), "needs its number of users"),
        (("--arrival", "onoff", "--on-factor", "9"), "leaves none off"),
        (("--input-len", "9:3"), "the least first"),
        (("--output-len", "0"), "expected 1 or more"),
        (("--cancel-rate", "2"), "expected 0..1"),
        (("--steady-window", "0.9:0.1"), "expected shares"),
        (("--assert", "p99_ttft_ms=3"), "expected NAME OP NUMBER"),
        (("--header", "no colon\n"), "is not the name of a header"),
        (("--extra-body", "[1]"), "must be a JSON object"),
        (("--endpoint", "messages"), "expected chat, completions"),
        (("--dataset", "nothing"), "no workload 'nothing'"),
        (("--dataset", "sharegpt"), "name the file with --dataset-path"),
        (("--dataset", "burstgpt"), "github.com/HPMLL/BurstGPT"),
        (("--dataset", "sonnet", "--data", "/nowhere"), "published at github.com/vllm-project"),
        (("--dataset", "mooncake", "--data", "/nowhere"), "github.com/kvcache-ai/Mooncake"),
        (("--dataset-path", "/nowhere.jsonl"), "/nowhere.jsonl: No such file"),
        (("--api-key-file", "/nowhere"), "No such file"),
        (("--num-warmups", "1", "--warmup-seconds", "1"), "say the same"),
        (("--ramp-up-strategy", "linear"), "needs --ramp-start-rps"),
        (("--processes", "65"), "--processes is 65; expected 1..64"),
        (("--result-filename", "../x"), "letters, digits"),
    ],
)
def test_wrong_flags_say_what_was_expected(
    run: Run, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], told: str
) -> None:
    assert run("http://127.0.0.1:9", "--model", "m", *flags) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "http://[::1"])
def test_what_is_no_url(run: Run, capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert run(url) == 2
    assert "URL" in capsys.readouterr().err


def test_a_disk_that_fills_up_ends_the_run_and_keeps_its_rows(
    scripted: Serve, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The second process may write two pages and no more: for it the disk is full then."""
    from loadgen.load import processes

    def limited(pipe: Any, order: Any) -> None:
        if order.share.index == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, 8_192))
        serve(pipe, order)

    serve = processes.serve
    monkeypatch.setattr(processes, "serve", limited)
    url = scripted("--ttft-ms", "2", "--tpot-ms", "1")
    flags = ("--num-prompts", "2000", "--request-rate", "200", "--output-len", "2")
    assert run(url, *flags, "--processes", "2", "--duration", "1.5") == 5
    assert "rows cannot be written: File too large" in capsys.readouterr().err
    rows = rows_of(tmp_path / "run")
    of_second = [row for row in rows if int(row["number"]) % 2]
    assert 10 <= len(of_second) < len(rows) - len(of_second), "what had found room is kept"


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from loadgen.load import exact_loop
    from tests.loadgen.load.conftest import parsed

    (tmp_path / "file").write_text("")
    options = parsed("run", "--result-dir", str(tmp_path / "file"), "--model", "m")
    assert exact_loop.run(options.call(options)) == 2
    assert "no results can be written" in capsys.readouterr().err
