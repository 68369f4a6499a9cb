"""Our file form: what is written is read; what is broken is named by file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.workloads import file
from loadgen.workloads.catalogue import Wish, load
from loadgen.workloads.request import WorkloadError

_HEAD = '{"format":"baton.workload/1","name":"mine","block_tokens":16}\n'
_ROW = '{"at_s":0,"prompt_tokens":20,"output_tokens":3,"blocks":[1,2]}\n'


@pytest.mark.parametrize("name", ["chat", "agents", "zipf"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    made = load(Wish(name, count=40, rate_per_s=3.0), tmp_path)
    path = tmp_path / "made.jsonl"
    file.write(made, path)
    assert file.read(path) == made
    assert load(Wish(str(path), count=1_000), tmp_path) == made


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", 'line 1: expected {"format"'),
        ('{"format":"other"}\n', "line 1: expected"),
        (_HEAD.replace("16", "0"), "line 1: block_tokens is 0"),
        (_HEAD + _ROW + "{cut", "line 3: not JSON"),
        (_HEAD + "[1]\n", "line 2: expected an object"),
        (_HEAD + '{"at_s":0,"prompt_tokens":20}\n', "line 2: output_tokens is missing"),
        (_HEAD + _ROW.replace("20", '"20"'), "line 2: prompt_tokens is '20'"),
        (_HEAD + _ROW.replace("20", "true"), "line 2: prompt_tokens is True"),
        (_HEAD + _ROW.replace("at_s", "at"), "line 2: at_s is missing"),
        (_HEAD + _ROW.replace('"blocks"', '"text"'), "line 2: unknown field 'text'"),
        (_HEAD + _ROW.replace("[1,2]", '["a"]'), "line 2: blocks must be"),
        (_HEAD + _ROW.replace("[1,2]", "[1]"), "row 0: blocks has 1 ids"),
    ],
)
def test_a_broken_file_names_line_and_field(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    with pytest.raises(WorkloadError) as raised:
        file.read(path)
    assert named in str(raised.value)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"nowhere\.jsonl: No such file"):
        file.read(tmp_path / "nowhere.jsonl")
