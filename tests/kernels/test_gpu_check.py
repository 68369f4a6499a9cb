"""The GPU check runs through without a GPU, notices a wrong kernel, and says what it left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kernels import dispatch
from kernels.bench import gpu_check, results, row_checks


def test_it_runs_dry_and_covers_every_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_check.main(["--dry", "--seed", "7", "--out", str(tmp_path / "found.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert found["ok"]
    assert found["skipped"] == []
    checked = {check["kernel"] for check in found["checks"]}
    assert checked >= {name for name in dispatch.__all__ if name != "Fusing"} | {"pod_step"}
    assert {timing["kernel"] for timing in found["timings"]} >= {"decode", "prefill", "pod"}


def test_a_wrong_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def crooked(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return x * weight + eps

    monkeypatch.setattr(dispatch, "rms_norm", crooked)
    bench = results.Bench(torch.device("cpu"), dry=True, limit_s=60, seed=1)
    row_checks._check_rows(bench, torch.float32)
    assert {check.kernel for check in bench.checks if not check.ok} == {"rms_norm"}


def test_numbers_that_are_none_are_wrong() -> None:
    bench = results.Bench(torch.device("cpu"), dry=True, limit_s=0, seed=1)
    bench.compare("x", "y", torch.tensor([float("nan")]), torch.zeros(1), 1.0)
    assert not bench.checks[0].ok
    assert not bench.has_time("z")
    assert bench.skipped == ["z"]


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert gpu_check.main([]) == 2
    assert "--dry" in capsys.readouterr().err
