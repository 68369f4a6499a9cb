"""A run's figures for the terminal; what spoils them comes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "itl_ms": "ITL ms",
    "e2e_ms": "E2E ms",
    "ttft_sent_ms": "TTFT sent",
}


def render(document: Mapping[str, Any]) -> str:
    """Lines; the headline of a client-limited run is struck through."""
    metrics, client = document["metrics"], document["client"]
    lines = []
    if client["limited"]:
        lines.append("CLIENT LIMITED: these are figures of the load generator, not of the server")
        lines += [f"  - {reason}" for reason in client["reasons"]]
    lines += [f"note            {warning}" for warning in document["warnings"]]
    loop = "closed loop" if document["arrival"].get("closed") else "open loop"
    lines.append(
        f"requests        {metrics['requests']} ({loop}, {document['arrival']['name']})   "
        f"{_counts(document['counts']['outcomes'])}"
    )
    lines += [f"                {count} x {what}" for what, count in _reasons(document)]
    columns = ["mean", *(n for n in _columns(metrics))]
    lines.append(f"{'':<12}" + "".join(f"{name:>10}" for name in columns))
    for key, name in _NAMES.items():
        if key in metrics:
            cells = "".join(f"{_number(metrics[key].get(column)):>10}" for column in columns)
            lines.append(f"{name:<12}{cells}")
    lines += _tail(document)
    return "\n".join(lines)


def _tail(document: Mapping[str, Any]) -> list[str]:
    metrics, reuse, goodput = document["metrics"], document["reuse"], document["goodput"]
    share = reuse["achieved"]
    found = [
        f"cache hits      {reuse['cached_tokens']} of {reuse['prompt_tokens']} prompt tokens"
        + (f" ({share:.1%}" if share is not None else "")
        + (f", ideal {reuse['ideal']:.1%})" if share is not None and reuse["ideal"] else "")
        + (")" if share is not None and not reuse["ideal"] else ""),
        f"throughput      {_number(metrics['requests_per_s'])} requests/s answered, "
        f"{_number(metrics['output_tokens_per_s'])} tokens/s",
    ]
    if goodput["slo"]:
        low, high = goodput["attainment_ci"] or (0.0, 0.0)
        found.append(
            f"goodput         {_number(goodput['goodput_rps'])} requests/s within {goodput['slo']}"
            f"; {goodput['attainment'] or 0:.1%} of all ({low:.1%} to {high:.1%})"
            f"{_per_gpu(goodput)}"
        )
    found += [
        f"  {step['rate_rps']:9.3f} /s    goodput {_number(step['goodput_rps']):>8}   "
        f"{step['attainment'] or 0:6.1%} met   {step['verdict']}"
        for step in document.get("steps") or ()
    ]
    if (limit := document.get("max_goodput")) is not None:
        found.append(
            f"most goodput    {_number(limit['goodput_rps'])} at {limit['rate_rps']:.3f} /s"
        )
    lag = document["client"]["lag_ms"]
    found.append(f"client lag      p50 {_number(lag['p50'])} ms, p99 {_number(lag['p99'])} ms")
    return found


def _per_gpu(goodput: Mapping[str, Any]) -> str:
    if not goodput.get("gpus"):
        return ""
    return f"; {_number(goodput['goodput_rps_per_gpu'])} for each of {goodput['gpus']} GPUs"


def _columns(metrics: Mapping[str, Any]) -> list[str]:
    spread = metrics["ttft_ms"]
    known = [name for name in spread if name.startswith("p")]
    return sorted(known, key=lambda name: float(f"0.{name[1:]}"))


def _reasons(document: Mapping[str, Any]) -> list[tuple[str, int]]:
    return list(document["counts"]["reasons"].items())[:8]


def _counts(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def _number(value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
