"""Captured files: broken ends, lies of the wire, a full disk; what came is kept."""

from __future__ import annotations

import argparse
import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from loadgen import capture
from loadgen.capture import CaptureError, Ids
from loadgen.workloads import file
from loadgen.workloads.request import WorkloadError

HEAD = b'{"format":"baton.capture.part/1","block_tokens":16}\n'
ROWS = (
    b'{"at_s":9.5,"prompt_tokens":20,"output_tokens":4,"blocks":[0,1]}\n'
    b'{"at_s":7.25,"prompt_tokens":20,"output_tokens":4,"blocks":[0,2],"ttft_slo_s":0.5}\n'
)
LINE: dict[str, Any] = {
    "at_s": 1.0,
    "prompt_tokens": 40,
    "output_tokens": 0,
    "blocks": ["ab" * 8, "cd" * 8],
}


def options(out: Path, **more: object) -> argparse.Namespace:
    said = {"admin_url": "http://127.0.0.1:1", "duration": 0.0, "count": 10, "recover": None}
    return argparse.Namespace(**said | {"out": out} | more)


def recover(part: Path, out: Path) -> int:
    return asyncio.run(capture.main(options(out, recover=part)))


def test_a_part_file_becomes_a_workload_in_order_of_time(tmp_path: Path) -> None:
    part, out = tmp_path / "x.part", tmp_path / "x.jsonl"
    part.write_bytes(HEAD + ROWS + b'{"at_s":11.0,"prompt_to')  # cut off while it was written
    assert recover(part, out) == 0
    found = file.read(out)
    assert [request.at_s for request in found] == [0.0, 2.25]
    assert [request.ttft_slo_s for request in found] == [0.5, 0.0]
    assert not part.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "line 1"),
        (b'{"format":"other"}\n', "line 1"),
        (HEAD, "no request ended"),
        (HEAD + b"garbage\n" + ROWS, "line 2: not JSON"),
        (HEAD + b"[1]\n", "line 2: expected an object"),
        (HEAD + b'{"at_s":1.0}\n', "line 2: prompt_tokens is missing"),
        (HEAD + ROWS.replace(b"[0,1]", b'["a text"]'), "blocks must be"),
        (HEAD + ROWS.replace(b'"output_tokens":4', b'"output_tokens":0'), "output_tokens is 0"),
        (HEAD + ROWS.replace(b"0.5", b'"a text"'), "ttft_slo_s is 'a text'"),
    ],
)
def test_a_corrupted_part_file_is_refused_by_name_and_kept(
    tmp_path: Path, text: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    part, out = tmp_path / "x.part", tmp_path / "x.jsonl"
    part.write_bytes(text)
    assert recover(part, out) == 1
    assert said in capsys.readouterr().err
    assert part.exists() and not out.exists()


def test_a_full_disk_keeps_what_came_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part, out = tmp_path / "x.jsonl.part", tmp_path / "x.jsonl"
    part.write_bytes(HEAD + ROWS)
    out.write_bytes(b"of yesterday")
    write = file.write

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(capture.file, "write", full)
    assert recover(part, out) == 1
    said = capsys.readouterr().err
    assert "No space left" in said and str(part) in said and "--recover" in said
    assert out.read_bytes() == b"of yesterday" and part.exists()
    monkeypatch.setattr(capture.file, "write", write)
    assert recover(part, out) == 0
    assert len(file.read(out)) == 2 and not list(tmp_path.glob("*.new"))


def test_an_older_part_file_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.jsonl.part").write_bytes(HEAD + ROWS)
    assert asyncio.run(capture.main(options(tmp_path / "x.jsonl"))) == 1
    assert "left of an earlier capture" in capsys.readouterr().err


def test_a_gateway_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asyncio.run(capture.main(options(tmp_path / "x.jsonl"))) == 1
    assert "does not answer" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_digests_become_small_numbers() -> None:
    ids = Ids(16)
    first = ids.request(LINE)
    second = ids.request(LINE | {"session": "ef" * 8, "priority": 5, "expected_tokens": 9})
    assert first.blocks == (0, 1, 2) and second.blocks == (0, 1, 3)  # the last has no name
    assert (first.output_tokens, second.session, second.priority) == (1, 0, 5)


@pytest.mark.parametrize(
    "lie",
    [
        {"prompt_tokens": "a text"},
        {"prompt_tokens": True},
        {"blocks": ["a text of sixteen"]},
        {"blocks": ["ab" * 8] * 3},
        {"session": "my session"},
        {"at_s": "soon"},
        {"priority": "high"},
    ],
)
def test_lies_of_the_wire_are_refused(lie: dict[str, object]) -> None:
    with pytest.raises(CaptureError):
        Ids(16).request(LINE | lie)


def test_lines_that_are_none() -> None:
    for line in (b"garbage", b"[1]", b"\xff"):
        with pytest.raises(CaptureError):
            capture.read_line(line)


def test_new_fields_of_a_workload_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    row = b'{"at_s":0.0,"prompt_tokens":2,"output_tokens":1,"expected_tokens":-1}\n'
    path.write_bytes(b'{"format":"baton.workload/1","block_tokens":16}\n' + row)
    with pytest.raises(WorkloadError, match="expected_tokens is -1"):
        file.read(path)
