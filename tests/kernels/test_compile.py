"""Every kernel compiles for three GPU generations, fits in shared memory and does not spill."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.bench import report

CHEAP = ("decode_join bf16 128 x4", "rms_rows bf16 1024", "gather_runs bf16", "shift_keys bf16 64")


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((report.HERE / "report.json").read_text("utf-8"))
    return found


def test_the_committed_report_is_of_these_sources(committed: dict[str, Any]) -> None:
    assert committed["sources"] == report.sources(), "run `make kernels-report`"
    assert (report.HERE / "report.md").read_text("utf-8") == report.markdown(committed)


def test_nothing_in_it_spills_or_does_not_fit(committed: dict[str, Any]) -> None:
    assert report.wrong(committed["kernels"]) == []


def test_it_holds_every_kernel_on_each_generation(committed: dict[str, Any]) -> None:
    entries = {
        node.name
        for path in report.ROOT.glob("kernels/*/*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.decorator_list
        if "tl.program_id" in ast.unparse(node)
    }
    built = {(k["sm"], k["kernel"].split()[0]) for k in committed["kernels"]}
    assert built == {(sm, name) for sm in report.SHARED_BYTES for name in entries}


def test_two_fused_programs_share_an_sm_unless_heads_are_wide(committed: dict[str, Any]) -> None:
    fused = [k for k in committed["kernels"] if k["kernel"].startswith("pod_step")]
    half = [k for k in fused if " fp32 " not in k["kernel"]]
    assert {" 256 " in kernel["kernel"] for kernel in half} == {False, True}
    for kernel in half:
        least = 1 if " 256 " in kernel["kernel"] else 2
        assert report.programs_per_sm(kernel) >= least
        assert kernel["warps"] * least == 8


def test_capped_scores_are_in_it(committed: dict[str, Any]) -> None:
    capped = {k["kernel"].split()[0] for k in committed["kernels"] if " capped" in k["kernel"]}
    assert capped >= {"decode_split", "prefill_tile", "pod_step"}


def test_some_kernels_compile_here_and_now(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernels.bench.compiling", "80,90,100", *CHEAP],
        cwd=report.ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    built = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kernel["sm"] for kernel in built} == set(report.SHARED_BYTES)
    assert report.wrong(built) == []


def test_a_spill_and_a_lack_of_room_are_told() -> None:
    kernel = {"sm": 80, "kernel": "x", "spill_bytes": 8, "shared_bytes": 10**6}
    assert len(report.wrong([kernel])) == 2
