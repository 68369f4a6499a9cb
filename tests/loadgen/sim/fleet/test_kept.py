"""Kept answers: found again for the same question alone, and never trusted when damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.sim.fleet import kept as module
from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.figures import Figures, Slo
from loadgen.sim.fleet.goodput import Draw, Goodput, Point
from loadgen.sim.fleet.kept import kept
from loadgen.sim.fleet.prices import PRICES
from loadgen.workloads.request import Request, Workload, build

_OPT = PRICES["opt-13b:tp1"]
_DESIGN = Design(prefills=1, decodes=1, prefill=_OPT, decode=_OPT, link=Link(bytes_per_s=25e9))
_SLO = Slo(1.0, 0.1)
_FIGURES = Figures(1, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 7)
_ANSWER = Goodput(3.5, 2, (Point(3.0, 0.95, _FIGURES), Point(4.0, 0.5, None, False)))


def _draw(output: int) -> Draw:
    def draw(rate_per_s: float) -> Workload:
        return build("one", 16, [Request(at_s=0.0, prompt_tokens=64, output_tokens=output)])

    return draw


class _Counted:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, design: Design, draw: Draw, slo: Slo, share: float, first_per_s: float
    ) -> Goodput:
        self.calls += 1
        return _ANSWER


def test_the_same_question_is_answered_once(tmp_path: Path) -> None:
    count = _Counted()
    search = kept(count, tmp_path)
    for _ in range(3):
        assert search(_DESIGN, _draw(8), _SLO, 0.9, 1.0) == _ANSWER
    assert count.calls == 1
    search(replace(_DESIGN, decodes=2), _draw(8), _SLO, 0.9, 1.0)
    search(_DESIGN, _draw(9), _SLO, 0.9, 1.0)
    search(_DESIGN, _draw(8), replace(_SLO, tpot_s=0.2), 0.9, 1.0)
    search(_DESIGN, _draw(8), _SLO, 0.99, 1.0)
    assert count.calls == 5


def test_other_code_is_another_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = _Counted()
    search = kept(count, tmp_path)
    search(_DESIGN, _draw(8), _SLO, 0.9, 1.0)
    monkeypatch.setattr(module, "code", lambda: "changed")
    search(_DESIGN, _draw(8), _SLO, 0.9, 1.0)
    assert count.calls == 2


@pytest.mark.parametrize("content", [b"", b"{}", b'{"rate_per_s":1,"devices":1,"curve":[{}]}'])
def test_a_damaged_answer_is_measured_again(tmp_path: Path, content: bytes) -> None:
    count = _Counted()
    search = kept(count, tmp_path)
    search(_DESIGN, _draw(8), _SLO, 0.9, 1.0)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert search(_DESIGN, _draw(8), _SLO, 0.9, 1.0) == _ANSWER
    assert count.calls == 2


def test_a_folder_that_cannot_be_written_costs_no_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    assert kept(_Counted(), tmp_path / "file" / "x")(_DESIGN, _draw(8), _SLO, 0.9, 1.0) == _ANSWER
