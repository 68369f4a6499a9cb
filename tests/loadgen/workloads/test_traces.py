"""Readers of published traces: their published statistics, and broken lines."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from loadgen.workloads import servegen, traces
from loadgen.workloads.catalogue import Wish, load
from loadgen.workloads.request import WorkloadError

DATA = Path(os.environ.get("DATA", "../shared/data"))
needs_data = pytest.mark.skipif(
    not DATA.is_dir(),
    reason="DATA is absent; originals: github.com/kvcache-ai/Mooncake, "
    "github.com/Azure/AzurePublicDataset, github.com/microsoft/vidur, github.com/alibaba/ServeGen",
)


@needs_data
@pytest.mark.parametrize(
    ("name", "count", "prompt", "output", "hit"),
    [
        ("mooncake:conversation", 12_031, 12_035, 343, 0.374),
        ("mooncake:synthetic", 3_993, 15_325, 149, 0.65),
        ("azure:code", 8_819, 2_048, 28, 0.0),
    ],
)
def test_a_trace_has_its_published_means(
    name: str, count: int, prompt: float, output: float, hit: float
) -> None:
    found = load(Wish(name, count=10**6), DATA)
    assert len(found) == count
    assert statistics.mean(r.prompt_tokens for r in found) == pytest.approx(prompt, abs=1)
    assert statistics.mean(r.output_tokens for r in found) == pytest.approx(output, abs=1)
    assert found.ideal_hit == pytest.approx(hit, abs=0.01)


@needs_data
def test_servegen_mixes_clients_at_another_rate() -> None:
    found = load(Wish("servegen:deepseek-r1", count=400, rate_per_s=4.0), DATA)
    assert found.rate_per_s == pytest.approx(4.0)
    assert len({request.tenant for request in found}) > 1
    assert found == load(Wish("servegen:deepseek-r1", count=400, rate_per_s=4.0), DATA)


@needs_data
def test_vidur_draws_pairs_of_the_file() -> None:
    found = load(Wish("vidur:arxiv", count=2_000), DATA)
    assert statistics.mean(r.prompt_tokens for r in found) == pytest.approx(2_588, rel=0.05)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (['{"timestamp":5,"input_length":600'], "line 1: not JSON"),
        (['{"timestamp":5,"input_length":0,"output_length":1,"hash_ids":[]}'], "input_length is 0"),
        (
            ['{"timestamp":5,"input_length":600,"output_length":1,"hash_ids":[1]}'],
            "1 hash_ids contradict input_length 600 (2 blocks)",
        ),
        (
            [
                '{"timestamp":5,"input_length":6,"output_length":1,"hash_ids":[1]}',
                '{"timestamp":4,"input_length":6,"output_length":1,"hash_ids":[1]}',
            ],
            "line 2: timestamp 4 is before 5",
        ),
    ],
)
def test_a_bad_mooncake_line_is_named(tmp_path: Path, rows: list[str], named: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(WorkloadError) as raised:
        traces.mooncake(path)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a,b\n", "line 1: no column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,2\n", "line 2: TIMESTAMP is 'soon'"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,-4,2\n",
            "line 2: ContextTokens is '-4'",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:17:03.97,4,2\n2023-11-16 18:17:02.97,4,2\n",
            "line 3: TIMESTAMP is before the first",
        ),
    ],
)
def test_a_bad_azure_line_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError) as raised:
        traces.azure(path)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("windows", "lengths", "named"),
    [
        ("0,1\n", "{}", "line 1: expected start, rate, CV, shape"),
        ("0,1,1,Gauss,0,0\n", "{}", "shape 'Gauss'"),
        ("0,1,1,Gamma,0,0\n", "[", "c-dataset.json"),
        ("0,1,1,Gamma,0,0\n", '{"0":{"input_tokens":"__import__(1)"}}', "input_tokens is not"),
    ],
)
def test_bad_servegen_files_are_named(
    tmp_path: Path, windows: str, lengths: str, named: str
) -> None:
    (tmp_path / "c-trace.csv").write_text(windows)
    (tmp_path / "c-dataset.json").write_text(lengths)
    with pytest.raises(WorkloadError) as raised:
        servegen.read(tmp_path, "c")
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("mooncake:other", "no workload"),
        ("dream", "no workload"),
        ("preble:other", "Preble has no workload"),
    ],
)
def test_an_unknown_name_says_what_there_is(tmp_path: Path, name: str, named: str) -> None:
    with pytest.raises(WorkloadError, match=named):
        load(Wish(name), tmp_path)


def test_absent_data_says_where_the_original_is(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"absent; the originals: github\.com/kvcache-ai"):
        load(Wish("mooncake:conversation"), tmp_path / "none")
