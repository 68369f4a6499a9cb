"""The matrix is whole: each row is played here or shown by a test that exists."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.faults.elsewhere import ELSEWHERE
from tests.e2e.faults.load import Stream, prompt, undisturbed
from tests.e2e.faults.report import line, page, terminal, write_page
from tests.e2e.faults.row import Outcome
from tests.e2e.faults.test_matrix import ROWS

ROOT = Path(__file__).parents[3]


def test_every_row_of_the_matrix_has_its_place() -> None:
    played = {row.id for row in ROWS}
    assert played.isdisjoint(ELSEWHERE)
    assert played | ELSEWHERE.keys() == {f"F{number:02}" for number in range(1, 62)}


def test_the_tests_that_stand_in_exist() -> None:
    for what, file, test in ELSEWHERE.values():
        assert what
        if file:
            assert f"def {test}" in (ROOT / file).read_text("utf-8"), (file, test)


def test_a_wrong_token_is_seen() -> None:
    tokens = prompt(1, 40)
    stream = Stream(tokens, 6, seen=list(undisturbed(tokens, 6)))
    assert not stream.wrong_tokens
    stream.seen[2] ^= 1
    assert stream.wrong_tokens == 1
    stream.seen.append(65)
    assert stream.wrong_tokens == 2
    assert Stream(tokens, 6, seen=list(undisturbed(tokens, 6))[1:]).wrong_tokens


def test_a_page_keeps_rows_of_earlier_runs(tmp_path: Path) -> None:
    first = Outcome(id="F05", what="a | b", result="passed", seconds=1.0)
    second = Outcome(id="F01", what="c", result="expected failure", reason="not yet", leaks=2)
    for outcome in (first, second):
        write_page(tmp_path / "page.md", tmp_path / "record.json", [outcome])
    text = (tmp_path / "page.md").read_text()
    assert "| F05 | a \\| b | passed |" in text and "- F01: not yet" in text
    assert text == page([second, first])
    assert terminal([first]).count("\n") == 1 and '"passed": 1' in line([first])
