"""Whole runs against scripted servers: what is sent, what is written, what is said of it. None of
these depends on how fast the machine is: figures are looked at only where they are sums of rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.load import exact_loop
from loadgen.load.scripted import FAULTS
from tests.loadgen.load.conftest import Run, Serve, parsed, rows_of
from tests.loadgen.reports.test_schema import SHIPPED, wrong

QUICK = ("--ttft-ms", "2", "--ttft-spread-ms", "2", "--tpot-ms", "1", "--tpot-spread-ms", "0")


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text("utf-8"))
    return found


def test_a_run_leaves_all_its_files(scripted: Serve, run: Run, tmp_path: Path) -> None:
    url = scripted(*QUICK)
    code = run(
        url, "--num-prompts", "40", "--request-rate", "200", "--output-len", "5",
        "--goodput", "ttft:60000", "tpot:60000", "--num-warmups", "4", "--processes", "2",
    )  # fmt: skip
    assert code in (0, 3), "3: this machine was busy, which is told and changes no row"
    folder = tmp_path / "run"
    assert {file.name for file in folder.iterdir()} == {
        "requests.csv", "requests.parquet", "run.json", "report.html",
    }  # fmt: skip
    rows = rows_of(folder)
    assert [row["phase"] for row in rows] == ["warmup"] * 4 + ["measured"] * 40
    measured = rows[4:]
    assert [int(row["number"]) for row in measured] == list(range(40))
    assert {row["outcome"] for row in measured} == {"ok"}
    assert {(row["chunks"], row["output_tokens"], row["prompt_tokens"]) for row in measured} == {
        ("5", "5", "256")
    }
    assert len({row["trace_id"] for row in rows}) == 44
    assert all(float(row["sent_s"]) >= float(row["intended_s"]) for row in measured)
    found = document(folder)
    assert list(wrong(SHIPPED, found)) == [] and found["metrics"]["requests"] == 40
    assert found["goodput"]["good"] == 40 and found["goodput"]["attainment"] == 1.0
    assert found["metrics"]["itl_ms"]["n"] == 40 * 4
    assert found["windows"]["warmup_requests"] == 4
    page = (folder / "report.html").read_text("utf-8")
    assert "http://" not in page.replace(url, "") and "<script" not in page


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("cut", "broken", "connection closed in mid-answer"),
        ("unfinished", "broken", "stream ended without its end marker"),
        ("not-http", "broken", "the answer is not HTTP/1.1"),
        ("not-events", "broken", "no server-sent events in the answer"),
        ("bad-json", "broken", "an event is not JSON"),
        ("refuse", "refused", "queue_full"),
        ("error-event", "error", "attempts_exhausted"),
        ("no-length", "error", "status 500"),
        ("silent", "error", "timeout"),
    ],
)
def test_what_a_server_does_wrong_is_a_row_and_a_miss(
    scripted: Serve, run: Run, tmp_path: Path, fault: str, outcome: str, reason: str
) -> None:
    assert fault in FAULTS
    url = scripted(*QUICK, "--fault", fault, "--fault-every", "3")
    timeout = "0.3" if fault == "silent" else "60"
    run(
        url, "--num-prompts", "9", "--request-rate", "inf", "--output-len", "4",
        "--goodput", "ttft:60000", "--timeout", timeout,
    )  # fmt: skip
    rows = rows_of(tmp_path / "run")
    wrong = [row for row in rows if row["outcome"] != "ok"]
    assert len(rows) == 9 and {(row["outcome"], row["reason"]) for row in wrong} == {
        (outcome, reason)
    }
    if fault != "silent":
        assert len(wrong) == 3
    assert document(tmp_path / "run")["goodput"]["good"] == 9 - len(wrong)


def test_tokens_are_counted_by_chunks_where_no_usage_comes(
    scripted: Serve, run: Run, tmp_path: Path
) -> None:
    url = scripted(*QUICK, "--fault", "no-usage")
    run(url, "--num-prompts", "3", "--request-rate", "inf", "--output-len", "4")
    rows = rows_of(tmp_path / "run")
    assert {(row["outcome"], row["counted"], row["output_tokens"]) for row in rows} == {
        ("ok", "chunks", "2")
    }
    assert "without usage" in " ".join(document(tmp_path / "run")["warnings"])


def test_a_client_that_is_slowed_on_purpose_is_called_limited(
    scripted: Serve, run: Run, tmp_path: Path
) -> None:
    """It blocks 20 ms before each send, where one is due every 5 ms: nowhere is it in time."""
    flags = ("--num-prompts", "60", "--request-rate", "200", "--output-len", "2")
    code = run(scripted(*QUICK), *flags, "--stall-ms", "20", "--arrival", "constant")
    client = document(tmp_path / "run")["client"]
    assert code == 3 and client["limited"]
    assert "requests left late" in client["reasons"][0]
    # 60 sends take 1.2 s at least; the last is due after 0.295 s.
    assert client["lag_ms"]["max"] > 800
    assert 'class="cards struck"' in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_own_cancels_are_counted_and_no_misses(scripted: Serve, run: Run, tmp_path: Path) -> None:
    url = scripted("--ttft-ms", "60000")
    run(url, "--num-prompts", "6", "--request-rate", "inf", "--cancel-rate", "1",
        "--cancel-after", "0.05", "--goodput", "ttft:1")  # fmt: skip
    found = document(tmp_path / "run")
    assert found["counts"]["outcomes"] == {"cancelled": 6}
    assert found["goodput"]["judged"] == 0 and found["goodput"]["attainment"] is None


def test_what_runs_after_the_grace_period_is_cut(scripted: Serve, run: Run, tmp_path: Path) -> None:
    url = scripted("--ttft-ms", "60000")
    code = run(url, "--duration", "0.3", "--request-rate", "20", "--grace-period", "0.3")
    rows = rows_of(tmp_path / "run")
    assert code == 5 and len(rows) >= 3
    assert {row["outcome"] for row in rows} == {"incomplete"}
    assert all(float(row["intended_s"]) < 0.3 for row in rows)


def test_a_cap_holds_requests_back_and_is_told(scripted: Serve, run: Run, tmp_path: Path) -> None:
    url = scripted("--ttft-ms", "30", "--ttft-spread-ms", "0", "--tpot-ms", "1")
    run(url, "--num-prompts", "8", "--request-rate", "inf", "--max-concurrency", "2",
        "--output-len", "2")  # fmt: skip
    rows = rows_of(tmp_path / "run")
    held = [float(row["held_s"]) for row in rows]
    assert sum(each > 0 for each in held) == 6 and max(held) > 3 * 0.03
    at_once = [
        sum(float(o["sent_s"]) <= float(r["sent_s"]) < float(o["last_s"]) for o in rows)
        for r in rows
    ]
    assert max(at_once) <= 2
    assert "capped: 6 requests" in " ".join(document(tmp_path / "run")["warnings"])


def test_users_of_a_closed_loop_wait_for_their_answers(
    scripted: Serve, run: Run, tmp_path: Path
) -> None:
    run(scripted(*QUICK), "--arrival", "closed", "--max-concurrency", "2", "--num-prompts", "10",
        "--think-time", "0.01", "--output-len", "2")  # fmt: skip
    rows = rows_of(tmp_path / "run")
    assert len(rows) == 10 and {row["outcome"] for row in rows} == {"ok"}
    ends = sorted(float(row["last_s"]) for row in rows)
    for row in rows[2:]:
        before = [end for end in ends if end <= float(row["intended_s"]) - 0.01 + 1e-5]
        assert len(before) >= int(row["number"]) - 1, "each request follows an end"
    assert "closed loop" in " ".join(document(tmp_path / "run")["warnings"])


def test_turns_follow_the_end_of_the_turn_before(scripted: Serve, run: Run, tmp_path: Path) -> None:
    run(scripted(*QUICK), "--dataset", "multi-turn", "--turns", "3", "--num-prompts", "6",
        "--think-time", "0.01", "--output-len", "3", "--input-len", "20", "--prefix-len", "32",
        "--request-rate", "50", "--endpoint", "chat")  # fmt: skip
    rows = rows_of(tmp_path / "run")
    assert [row["turn"] for row in rows] == ["0", "1", "2", "0", "1", "2"]
    for before, after in ((0, 1), (1, 2), (3, 4), (4, 5)):
        assert float(rows[after]["intended_s"]) >= float(rows[before]["last_s"])
        # The scripted server counts messages: one more question and one more answer each turn.
        assert int(rows[after]["prompt_tokens"]) == int(rows[before]["prompt_tokens"]) + 2


def test_a_sweep_judges_each_rate_and_searches_between(
    scripted: Serve, run: Run, tmp_path: Path
) -> None:
    run(scripted(*QUICK), "--ramp-up-strategy", "steps", "--ramp-start-rps", "40",
        "--ramp-end-rps", "160", "--ramp-steps", "3", "--bisect", "1", "--num-prompts", "24",
        "--output-len", "2", "--goodput", "ttft:0.001")  # fmt: skip
    found = document(tmp_path / "run")
    assert [step["rate_rps"] for step in found["steps"]] == pytest.approx([40, 80, 160])
    assert not any(step["holds"] for step in found["steps"]) and found["max_goodput"] is None
    rows = rows_of(tmp_path / "run")
    assert [row["step"] for row in rows] == ["0"] * 24 + ["1"] * 24 + ["2"] * 24
    starts = [min(float(r["intended_s"]) for r in rows if r["step"] == s) for s in "012"]
    assert starts == sorted(starts) and starts[0] == 0.0
    assert "Goodput against rate" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_claims_decide_the_exit_code(scripted: Serve, run: Run) -> None:
    flags = ("--num-prompts", "3", "--request-rate", "1000", "--output-len", "2")
    assert run(scripted(*QUICK), *flags, "--assert", "p50_ttft_ms<0.001") in (3, 4)


def test_two_servers_take_turns_on_one_schedule(
    scripted: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [scripted(*QUICK), scripted("--ttft-ms", "60", "--tpot-ms", "1")]
    words = ("--num-prompts", "60", "--request-rate", "100", "--output-len", "3", "--quiet")
    where = ("--result-dir", str(tmp_path), "--result-filename", "both", "--admin-url", "")
    options = parsed("ab", *urls, "--slot-seconds", "0.2", *words, *where)
    assert exact_loop.run(options.call(options)) in (0, 3)
    rows = [rows_of(tmp_path / "both" / name) for name in "ab"]
    sent = [[(row["number"], row["step"]) for row in side] for side in rows]
    assert sent[0] == sent[1] and {step for _, step in sent[0]} == {"0", "1", "2"}
    digests = {document(tmp_path / "both" / name)["schedule_digest"] for name in "ab"}
    assert len(digests) == 1 and "request by request" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "both" / "report.html").read_text("utf-8")


def test_a_captured_workload_can_be_sent_again(scripted: Serve, run: Run, tmp_path: Path) -> None:
    rows = [
        {"format": "baton.workload/1", "name": "seen", "block_tokens": 16},
        {"at_s": 0.0, "prompt_tokens": 40, "output_tokens": 2, "blocks": [0, 1, 2]},
        {"at_s": 0.01, "prompt_tokens": 33, "output_tokens": 4, "after": 0, "blocks": [0, 1, 5]},
    ]
    path = tmp_path / "seen.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    run(scripted(*QUICK), "--dataset-path", str(path))
    sent = rows_of(tmp_path / "run")
    assert [(r["prompt_tokens"], r["output_tokens"], r["turn"]) for r in sent] == [
        ("40", "2", "0"), ("33", "4", "1"),
    ]  # fmt: skip
    assert document(tmp_path / "run")["arrival"]["name"] == "trace"
