"""Sweeps: what a value changes, plots that parse, files that agree, and bad input."""

from __future__ import annotations

import asyncio
import csv
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from loadgen import arrivals
from loadgen.__main__ import parser
from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.prices import PRICES
from loadgen.sweeps.axes import AXES, Scene, rivals
from loadgen.sweeps.page import Point, as_csv, as_html
from loadgen.sweeps.plot import Series, line_plot
from loadgen.workloads.request import Request, Workload, build

_OPT = PRICES["opt-13b:tp1"]
_DESIGN = Design(
    prefills=1, decodes=1, prefill=_OPT, decode=_OPT, link=Link(bytes_per_s=25e9), block_tokens=64
)


def _draw(rate_per_s: float) -> Workload:
    times = arrivals.constant(rate_per_s, 6)
    return build("even", 64, (Request(at_s=t, prompt_tokens=64, output_tokens=4) for t in times))


_SCENE = Scene(_DESIGN, _draw, 2.0)


def test_each_axis_changes_its_own_quantity() -> None:
    assert set(AXES) == {"bandwidth", "load", "context", "sharing", "block", "pool", "chunk"}

    def at(axis: str, value: float) -> Scene:
        return AXES[axis].apply(_SCENE, value)

    assert at("bandwidth", 2).design.link.bytes_per_s == 2e9
    assert at("load", 1.5).rate_per_s == 3.0
    assert at("block", 128).design.block_tokens == 128
    assert at("chunk", 256).design.step_tokens == 256
    assert at("pool", 64).design.kvpool_tokens == 64_000
    assert at("pool", 0).design.kvpools == 0
    context = at("context", 4_096)
    assert {row.prompt_tokens for row in context.workload()} == {4_096}
    assert context.rate_per_s == 1.0
    assert at("sharing", 0.5).workload().ideal_hit > at("sharing", 0).workload().ideal_hit == 0.0


def test_rivals_have_the_same_gpus() -> None:
    found = rivals(replace(_DESIGN, prefills=2, decodes=2))
    assert {design.devices for design in found.values()} == {4}
    assert [design.route for design in found.values()] == ["colocated", "disaggregated", "auto"]


@pytest.mark.parametrize("xs", [(0.0, 0.5, 1.0), (0.25, 1.0, 50.0), (3.0,)])
def test_a_plot_is_well_formed_and_holds_every_point(xs: tuple[float, ...]) -> None:
    lines = [Series("a & b", tuple((x, x * 2) for x in xs)), Series("none", ())]
    tree = ElementTree.fromstring(line_plot("<title>", "x", "y", lines))
    tag = "{http://www.w3.org/2000/svg}"
    circles = tree.findall(f"{tag}circle")
    assert len(circles) == len(xs)
    heights = [float(circle.attrib["cy"]) for circle in circles]
    assert heights == sorted(heights, reverse=True)
    assert all(0 <= float(circle.attrib["cx"]) <= 460 for circle in circles)
    assert len(tree.findall(f"{tag}polyline")) == 2


def test_what_could_not_be_is_told_in_both_files() -> None:
    points = [Point(1.0, "baton", None, "too <small>")]
    rows = list(csv.reader(as_csv("pool", points).splitlines()))
    assert rows[0][:2] == ["pool", "fleet"]
    assert rows[1][-1] == "too <small>"
    page = as_html("t", "pool", ["note"], points)
    assert "too &lt;small&gt;" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def _run(*flags: str) -> int:
    options = parser().parse_args(["sim", "sweep", *flags])
    return int(asyncio.run(options.call(options)))


def test_a_sweep_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = ("--count", "12", "--jobs", "1", "--out", str(tmp_path), "--prefills", "1")
    assert _run("bandwidth", "--values", "1,0", *usual) == 0
    out = capsys.readouterr().out.splitlines()
    line = orjson.loads(out[-1])
    assert line["points"] == 6
    assert line["best"].keys() == {"1"}
    rows = list(csv.DictReader((tmp_path / "sweep-bandwidth.csv").read_text().splitlines()))
    assert [row["bandwidth"] for row in rows] == ["0", "0", "0", "1", "1", "1"]
    assert "positive bandwidth" in rows[0]["why"]
    assert float(rows[3]["goodput_per_s"]) > 0
    assert (tmp_path / "sweep-bandwidth.html").read_text().count("<svg") == 7


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("load", "--values", "a"), "expected numbers, separated by commas"),
        (("load", "--values", "-1"), "at least 0"),
        (("chunk", "--values", "8"), "holds less than a block"),
        (("block", "--model", "gpt-9"), "unknown model 'gpt-9'"),
        (("block", "--workload", "nothing"), "no workload 'nothing'"),
    ],
)
def test_bad_input_is_named(
    flags: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*flags, "--count", "6", "--jobs", "1", "--out", str(tmp_path)) == 2
    assert text in capsys.readouterr().err
