"""What a run leaves, read back; and what is said when it is damaged or cannot be written."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from pyarrow.parquet import read_table

from loadgen import __main__ as command_line
from loadgen.load import exact_loop
from loadgen.records import DERIVED, NAMES
from loadgen.reports import leave, page, parquet, run_files
from loadgen.reports.summary import Facts, summarise
from tests.loadgen.reports.rows import rows_of, write_rows

HEADER = ",".join((*NAMES, *DERIVED))


def command(*flags: str) -> int:
    options = command_line.parser().parse_args(flags)
    return int(exact_loop.run(options.call(options)))


def document(rows: run_files.Rows, **changes: Any) -> dict[str, Any]:
    return {
        "schema": "baton.run/1",
        "id": "run",
        "environment": {},
        "arrival": {"name": "poisson", "closed": False},
        "dataset": {"name": "random-ids"},
        "schedule_digest": "d",
        "target": {"admin_url": "http://127.0.0.1:8001"},
        "trouble": [],
        **summarise(rows, Facts()),
        **changes,
    }


def a_run(folder: Path, count: int = 60, **changes: Any) -> Path:
    folder.mkdir()
    write_rows(folder, *({"at": n / 10, "ttft": 0.1 + n / 1000} for n in range(count)))
    run_files.write_run(folder, document(run_files.read_rows(folder), **changes))
    return folder


def test_a_report_is_made_again_by_other_objectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_run(tmp_path / "a")
    assert command("report", str(folder), "--goodput", "ttft:129.5") == 0
    found = run_files.read_run(folder)
    assert found["goodput"]["good"] == 30 and "50.0% of all" in capsys.readouterr().out
    assert (folder / "report.html").stat().st_size < 200_000


def test_what_an_unfinished_run_left_can_be_reported(tmp_path: Path) -> None:
    """Two parts, one cut in the middle of a line, no run.json."""
    folder = a_run(tmp_path / "a", 20)
    text = (folder / "requests.csv").read_text("utf-8").splitlines(keepends=True)
    (folder / "rows-0-0.csv").write_text("".join([text[0], *text[1::2]]), "utf-8")
    (folder / "rows-0-1.csv").write_text("".join([text[0], *text[2::2]])[:-40], "utf-8")
    for name in ("requests.csv", "run.json"):
        (folder / name).unlink()
    assert command("report", str(folder)) == 0
    assert run_files.read_run(folder)["metrics"]["requests"] == 19
    lines = (folder / "requests.csv").read_text("utf-8").splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [str(n) for n in range(19)]
    assert not list(folder.glob("rows-*"))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("run.json", "{", "run.json is not JSON"),
        ("run.json", "[]", "schema is None"),
        ("run.json", '{"schema":"baton.run/2"}', "this release reads baton.run/1"),
        ("run.json", '{"schema":7}', "schema is 7"),
        ("requests.csv", "", "line 1: no column number"),
        ("requests.csv", "number,x\n1,2\n", "line 1: no column intended_s"),
        ("requests.csv", HEADER + "\n1,2\n", "line 2: not as many cells"),
        ("requests.csv", HEADER + "\n" + "x" + "," * HEADER.count(","), "line 2: number is 'x'"),
        ("requests.csv", "\xff", "codec can't decode"),
    ],
)
def test_a_damaged_file_is_named_with_its_line_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, told: str
) -> None:
    folder = a_run(tmp_path / "a")
    (folder / name).write_text(content, "latin-1")
    assert command("report", str(folder)) == 2
    assert command("compare", str(folder), str(folder)) == 2
    said = capsys.readouterr().err
    assert said.count(told) == 2 and str(folder / name) in said
    assert command("report", str(tmp_path / "nowhere")) == 2
    assert "no requests.csv here" in capsys.readouterr().err


def test_runs_of_other_schedules_are_compared_only_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = a_run(tmp_path / "a"), a_run(tmp_path / "b", schedule_digest="e")
    assert command("compare", str(a), str(b)) == 2
    assert "--unpaired" in capsys.readouterr().err
    page_of_both = tmp_path / "both.html"
    assert command("compare", str(a), str(b), "--unpaired", "--html", str(page_of_both)) == 0
    assert capsys.readouterr().out.endswith("verdict: no difference shown\n")
    assert "no difference shown" in page_of_both.read_text("utf-8")


def test_a_run_that_its_client_limited_compares_with_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limited = {"limited": True, "reasons": ["late"], "lag_ms": {}, "processes": []}
    a, b = a_run(tmp_path / "a"), a_run(tmp_path / "b", client=limited)
    assert command("compare", str(a), str(b)) == 0
    assert "verdict: none: B was limited by its client" in capsys.readouterr().out


def test_a_full_disk_costs_a_file_and_keeps_the_others(tmp_path: Path) -> None:
    """/dev/full fails each write as a full disk does."""
    folder = a_run(tmp_path / "a")
    rows = run_files.read_rows(folder)
    (folder / ".requests.parquet.new").symlink_to("/dev/full")
    (folder / ".report.html.new").symlink_to("/dev/full")
    found = document(rows)
    leave.everything(folder, found, rows)
    assert [told.partition(" was not written")[0] for told in found["trouble"]] == [
        "requests.parquet", "report.html",
    ]  # fmt: skip
    assert "No space left" in found["trouble"][0]
    assert run_files.read_run(folder)["trouble"] == found["trouble"]
    (folder / ".run.json.new").symlink_to("/dev/full")
    before = (folder / "run.json").read_bytes()
    again = document(rows)
    leave.everything(folder, again, rows)
    assert "run.json was not written" in again["trouble"][0]
    assert (folder / "run.json").read_bytes() == before, "whole, or as it was"


def test_rows_that_cannot_be_merged_stay_where_they_are(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a", 10)
    part = (folder / "requests.csv").rename(folder / "rows-0-0.csv")
    (folder / ".requests.csv.new").symlink_to("/dev/full")
    trouble: list[str] = []
    leave.rows(folder, [part], trouble)
    assert "requests.csv was not written: No space left" in trouble[0] and part.exists()
    assert len(run_files.read_rows(folder)) == 10


def test_hostile_words_are_text_in_the_page(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    rows = rows_of(
        *({"ttft": 0.1, "tenant": evil} for _ in range(5)),
        {"outcome": "error", "reason": evil},
    )
    found = document(rows, id=evil, warnings=[evil], target={"admin_url": '"><script>'})
    assert "<script" not in page.render(found, rows)


def test_the_page_stays_small_whatever_the_number_of_rows() -> None:
    few = rows_of(*({"at": n / 50, "ttft": 0.1 + n % 7 / 100} for n in range(500)))
    many = rows_of(*({"at": n / 50, "ttft": 0.1 + n % 7 / 100} for n in range(5_000)))
    sizes = [len(page.render(document(rows), rows)) for rows in (few, many)]
    assert sizes[1] < sizes[0] * 1.5 and sizes[1] < 300_000


def test_an_empty_run_has_a_page() -> None:
    rows = rows_of({"outcome": "error", "reason": "cannot connect"})
    nothing = rows.where(rows.ok)
    assert "Nothing was answered" in page.render(document(rows), rows)
    assert "Nothing was sent" in page.render(document(nothing), nothing)


def test_parquet_as_the_format_says(tmp_path: Path) -> None:
    """The first page of the first column, by hand; the whole file as pyarrow reads it."""
    rows = rows_of({"ttft": 0.25, "tenant": "grün"}, {"outcome": "refused", "reason": "queue_full"})
    path = tmp_path / "x.parquet"
    parquet.write(path, rows)
    content = path.read_bytes()
    assert content[:4] == content[-4:] == b"PAR1"
    (footer,) = struct.unpack("<I", content[-8:-4])
    assert content[-8 - footer :].count(b"ttft_s") >= 2
    first = zlib.decompressobj(31).decompress(content[content.index(b"\x1f\x8b") :])
    # Definition levels: 2 bytes long, one bit-packed group, both there; then 0 and 1 as int64.
    assert first == struct.pack("<IBBqq", 2, 3, 0b11, 0, 1)
    table = read_table(path).to_pylist()
    assert [row["ttft_s"] for row in table] == [0.25, None]
    assert table[0]["tenant"] == "grün" and table[1]["reason"] == "queue_full"
    assert json.dumps(table[0]["output_tokens"]) == "11"
