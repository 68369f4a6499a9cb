"""`report.html`: one file without anything from outside. Verdicts first; every chart has its
numbers in a table. Its size does not depend on the number of requests.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from loadgen.load.histogram import from_told
from loadgen.reports import charts, drawing
from loadgen.reports.drawing import Axis, Line
from loadgen.reports.run_files import Rows
from loadgen.reports.style import STYLE

_WORST: Final = 20
_LATENCIES: Final = (
    ("ttft_ms", "TTFT", "first token, from the intended send"),
    ("ttft_sent_ms", "TTFT sent", "the same from the actual send"),
    ("tpot_ms", "TPOT", "per further token"),
    ("itl_ms", "ITL", "between two tokens"),
    ("e2e_ms", "E2E", "whole answer, from the intended send"),
)


def render(document: Mapping[str, Any], rows: Rows) -> str:
    """The page of one run."""
    measured = rows.measured()
    name = str(document["id"])
    parts = [
        f"<h1>{_text(name)}</h1>",
        _verdicts(document),
        _headline(document),
        _section("Latencies", latency_table(document["metrics"])),
        _section("Over time", _over_time(measured)),
        _section("How many were so fast", _curves(measured, document)),
        _section("Goodput against rate", _goodput(document)),
        _section("Reuse", _reuse(document)),
        _section("Where the first token's time went", _split(document)),
        _section("Bytes moved", _moved(document)),
        _section("Work of each worker", _workers(document)),
        _section("Slowest first tokens", _worst(measured, document)),
        _section("What was not answered", _failures(document)),
        _section("How it was made", _made(document)),
        _section("Definitions", DEFINITIONS),
    ]
    return whole(name, parts)


def whole(title: str, parts: Iterable[str]) -> str:
    """A page around parts."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)} · Baton load run</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> str:
    """Cells are HTML already."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(name)}"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def latency_table(metrics: Mapping[str, Any]) -> str:
    """Each figure with the interval in which chance may have put it."""
    shown = [(key, name, what) for key, name, what in _LATENCIES if key in metrics]
    columns = ("mean", "p50", "p90", "p95", "p99", "p999")
    lines = []
    for key, name, what in shown:
        spread = metrics[key]
        cells = [_with_interval(spread, column) for column in columns]
        lines.append([f"<b>{name}</b> <small>{what}</small>", *cells, f"{spread['n']}"])
    return table(["milliseconds", *columns, "n"], lines, "Latencies")


def _verdicts(document: Mapping[str, Any]) -> str:
    client = document["client"]
    found = []
    if client["limited"]:
        reasons = "".join(f"<li>{_text(one)}</li>" for one in client["reasons"])
        found.append(
            '<div class="bad"><b>Client limited.</b> These are figures of the load generator, '
            f"not of the server.<ul>{reasons}</ul></div>"
        )
    if document.get("interrupted"):
        found.append('<div class="warn">Interrupted: what had been sent by then.</div>')
    found += [f'<div class="warn">{_text(one)}</div>' for one in document["warnings"]]
    found += [f'<div class="bad">{_text(one)}</div>' for one in document.get("trouble", ())]
    if not found:
        found.append('<div class="good">The client kept its schedule; no warnings.</div>')
    return "".join(found)


def _headline(document: Mapping[str, Any]) -> str:
    metrics, goodput = document["metrics"], document["goodput"]
    struck = " struck" if document["client"]["limited"] else ""
    figures = [
        ("requests", f"{metrics['requests']}"),
        ("answered per s", _number(metrics["requests_per_s"])),
        ("tokens per s", _number(metrics["output_tokens_per_s"])),
        ("TTFT p50, ms", _number(metrics["ttft_ms"]["p50"])),
        ("TPOT p50, ms", _number(metrics["tpot_ms"]["p50"])),
    ]
    if goodput["slo"]:
        attained = goodput["attainment"]
        figures.append((f"within {goodput['slo']}", f"{attained or 0:.1%}"))
        figures.append(("goodput per s", _number(goodput["goodput_rps"])))
        if goodput.get("gpus"):
            each = _number(goodput["goodput_rps_per_gpu"])
            figures.append((f"per GPU of {goodput['gpus']}", each))
    cards = "".join(f"<div><b>{_text(v)}</b><span>{_text(k)}</span></div>" for k, v in figures)
    loop = "closed loop" if document["arrival"]["closed"] else "open loop"
    said = f"{loop}, {document['arrival']['name']} arrivals, {document['dataset']['name']}"
    return f'<p>{_text(said)}</p><div class="cards{struck}">{cards}</div>'


def _over_time(rows: Rows) -> str:
    if not len(rows):
        return _none("nothing was sent")
    ttft = charts.binned(rows, "ttft_s")
    drawn = [
        drawing.line_chart("TTFT over time", Axis("seconds"), Axis("ms"), ttft),
        drawing.line_chart(
            "TPOT over time", Axis("seconds"), Axis("ms"), charts.binned(rows, "tpot_s")
        ),
        drawing.line_chart(
            "Load over time", Axis("seconds"), Axis("requests/s"), charts.load(rows)
        ),
        drawing.line_chart("Requests under way", Axis("seconds"), Axis(""), charts.open_(rows)),
    ]
    return _plots(drawn)


def _curves(rows: Rows, document: Mapping[str, Any]) -> str:
    answered = rows.where(rows.ok)
    drawn = []
    for name, title in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E")):
        points = charts.curve(answered.numbers[name])
        if points:
            line = [Line("share of requests", points)]
            drawn.append(
                drawing.line_chart(title, Axis("ms, at most", log=True), Axis("", least=1), line)
            )
    if document.get("gaps"):
        points = [(v * 1000, share) for v, share in from_told(document["gaps"]).curve(200)]
        if points:
            line = [Line("share of gaps", points)]
            drawn.append(
                drawing.line_chart("ITL", Axis("ms, at most", log=True), Axis("", least=1), line)
            )
    return _plots(drawn) if drawn else _none("nothing was answered")


def _goodput(document: Mapping[str, Any]) -> str:
    steps = document.get("steps") or []
    goodput = document["goodput"]
    if not steps:
        if not goodput["slo"]:
            return _none("no objectives were given: --goodput ttft:500 tpot:50")
        low, high = goodput["attainment_ci"] or (0.0, 0.0)
        missed = ", ".join(f"{_text(k)}: {v}" for k, v in goodput["missed_by"].items())
        return (
            f"<p>{goodput['good']} of {goodput['judged']} met {_text(goodput['slo'])} "
            f"({low:.1%} to {high:.1%}); missed by {missed}. One rate only: a sweep draws the "
            "curve (--ramp-up-strategy steps).</p>"
        )
    points = [(step["rate_rps"], step["goodput_rps"] or 0.0) for step in steps]
    chart = drawing.line_chart(
        "Goodput against rate",
        Axis("requests/s asked"),
        Axis("good requests/s"),
        [Line("goodput", points), Line("asked", [(x, x) for x, _ in points])],
        dots=True,
    )
    head = ("asked, 1/s", "goodput, 1/s", "met", "TTFT p50, ms", "TTFT p99, ms", "verdict")
    lines = [
        [
            _number(step["rate_rps"]),
            _number(step["goodput_rps"]),
            f"{step['attainment'] or 0:.1%}",
            _number(step["ttft_p50_ms"]),
            _number(step["ttft_p99_ms"]),
            _text(step["verdict"]),
        ]
        for step in steps
    ]
    return _plots([chart]) + table(head, lines, "Rates of the sweep")


def _reuse(document: Mapping[str, Any]) -> str:
    reuse, told = document["reuse"], document.get("server_delta") or {}
    lines = [
        ["ideal: an infinite cache, before the run", _share(reuse["ideal"])],
        ["achieved, by usage", _share(reuse["achieved"])],
        ["prompt tokens wanted, mean", _number(reuse["mean_prompt_tokens_wanted"])],
        ["prompt tokens real, mean", _number(reuse["mean_prompt_tokens"])],
    ]
    sources = told.get("prompt_tokens_by_source") or {}
    total = sum(sources.values())
    lines += [
        [f"by the server's counters: {_text(name)}", f"{count:.0f} ({count / total:.1%})"]
        for name, count in sorted(sources.items())
        if total
    ]
    found = table(("prompt tokens", ""), lines, "Reuse")
    if total:
        bar = [("prompt tokens", sorted(sources.items()))]
        found += _plots(
            [drawing.stacked_bar("Prompt tokens by where they came from", "tokens", bar)]
        )
    return found


def _split(document: Mapping[str, Any]) -> str:
    split = (document.get("server_delta") or {}).get("ttft_split") or {}
    parts = split.get("mean_ms") or {}
    if not parts:
        return _none("only a Baton tells this, on its port for operators (--admin-url)")
    bar = drawing.stacked_bar("Mean of a request", "ms", [("TTFT", list(parts.items()))])
    total = sum(parts.values()) or 1.0
    lines = [[_text(k), f"{v:.3f}", f"{v / total:.1%}"] for k, v in parts.items() if v]
    head = ("part", "ms, mean", "share")
    said = f"<p>As the server's traces of {split['traces']} of these requests split it.</p>"
    return said + _plots([bar]) + table(head, lines, "Parts of the first token")


def _moved(document: Mapping[str, Any]) -> str:
    moved = (document.get("server_delta") or {}).get("bytes_moved") or {}
    lines = [[_text(k), f"{v / 1e6:.2f}"] for k, v in sorted(moved.items()) if v]
    if not lines:
        return _none("nothing was handed over, or the server does not tell")
    return table(("worker and transport", "MB pulled"), lines, "Bytes moved")


def _workers(document: Mapping[str, Any]) -> str:
    looks = (document.get("server_delta") or {}).get("workers") or []
    names = sorted({name for look in looks for name in look["workers"]})
    if not names:
        return _none("only a Baton tells this, on its port for operators (--admin-url)")
    drawn, lines = [], []
    for kind, title in (("queued", "Requests queued"), ("running", "Sequences running")):
        series = [Line(name, charts.of_worker(looks, name, kind)) for name in names[:8]]
        drawn.append(drawing.line_chart(title, Axis("seconds"), Axis(""), series))
    for name in names:
        means = [charts.mean_of_worker(looks, name, k) for k in ("queued", "running", "pages")]
        lines.append([_text(name), f"{means[0]:.2f}", f"{means[1]:.2f}", f"{means[2]:.1%}"])
    head = ("worker", "queued, mean", "running, mean", "pages in use, mean")
    return _plots(drawn) + table(head, lines, "Workers")


def _worst(rows: Rows, document: Mapping[str, Any]) -> str:
    answered = rows.where(rows.ok)
    if not len(answered):
        return _none("nothing was answered")
    order = np.argsort(-np.nan_to_num(answered.numbers["ttft_s"]))[:_WORST]
    admin = str(document["target"].get("admin_url") or "")
    lines = []
    for place in order.tolist():
        trace = answered.marks["trace_id"][place].decode()
        shown = _text(trace)
        if admin and trace.isalnum():
            shown = f'<a href="{_text(admin)}/traces/{trace}">{trace}</a>'
        numbers = {name: column[place] for name, column in answered.numbers.items()}
        lines.append(
            [
                f"{numbers['number']:.0f}",
                _ms(numbers["ttft_s"]),
                _ms(numbers["ttft_sent_s"]),
                _ms(numbers["e2e_s"]),
                _whole(numbers["prompt_tokens"]),
                _whole(numbers["cached_tokens"]),
                _whole(numbers["output_tokens"]),
                _text(str(answered.words["route"][place])),
                shown,
            ]
        )
    head = ("request", "TTFT, ms", "from the send", "E2E", "prompt", "cached", "tokens", "route",
            "trace")  # fmt: skip
    return table(head, lines, "Slowest requests")


def _failures(document: Mapping[str, Any]) -> str:
    reasons = document["counts"]["reasons"]
    if not reasons:
        return "<p>Nothing: every request was answered.</p>"
    lines = [[_text(reason), f"{count}"] for reason, count in reasons.items()]
    return table(("outcome and reason", "requests"), lines, "Failures")


def _made(document: Mapping[str, Any]) -> str:
    pairs = {
        "command": document.get("command", {}),
        "environment": document["environment"],
        "target": document["target"],
        "schedule": document["schedule_digest"],
        "client lag, ms": document["client"]["lag_ms"],
    }
    lines = [[_text(name), f"<code>{_text(str(said))}</code>"] for name, said in pairs.items()]
    return table(("", ""), lines, "How it was made")


DEFINITIONS: Final = (
    "<p><b>TTFT</b> first chunk with content minus the <i>intended</i> send: a late client or a "
    "waiting server both show. <b>E2E</b> last chunk with content minus the intended send. "
    "<b>TPOT</b> (last - first) / (n - 1), n counted by the server, absent for n &lt; 2. "
    "<b>ITL</b> the gap before a chunk, once for each token in it. <b>Goodput</b> requests that "
    "met all objectives, per second; whatever failed is a miss, what the load generator "
    "cancelled itself is left out. Percentiles are exact, and absent with fewer than ten values "
    "beyond. Intervals are 95 %, for this run alone: another day differs for more reasons.</p>"
)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _plots(drawn: Sequence[str]) -> str:
    return f'<div class="plots">{"".join(f"<figure>{one}</figure>" for one in drawn)}</div>'


def _none(why: str) -> str:
    return f'<p class="none">{_text(why[0].upper() + why[1:])}.</p>'


def _with_interval(spread: Mapping[str, Any], column: str) -> str:
    value, interval = spread.get(column), spread["ci"].get(column)
    if value is None:
        return "-"
    low_high = (
        f" <small>{_number(interval[0])} to {_number(interval[1])}</small>" if interval else ""
    )
    return f"{_number(value)}{low_high}"


def _number(value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _share(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else "-"


def _ms(seconds: float) -> str:
    return "-" if np.isnan(seconds) else f"{seconds * 1000:.1f}"


def _whole(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.0f}"


def _text(said: str) -> str:
    return html.escape(said, quote=True)
