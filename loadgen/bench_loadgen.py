"""`make bench-loadgen`: can the load generator be believed? Three questions, all with a
scripted server in a process beside it.

Accuracy: every figure of a run at 500 requests/s against what the server really wrote and when;
each should lie within 1 ms or 1 %. Size: 100,000 requests; does memory stay flat, how large is the
report and how soon does Chromium show it? Agreement with `vllm bench serve`, where it is there. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np
import orjson

from loadgen import run
from loadgen.engine import peers
from loadgen.load import flags, setup
from loadgen.reports import run_files
from loadgen.reports.figures import percentile

_TOLERANCE_MS: Final = 1.0
_TOLERANCE: Final = 0.01
_PERCENTS: Final = (50.0, 90.0, 95.0, 99.0)
_ROOT: Final = Path(__file__).resolve().parents[1]
_OPENINGS: Final = 5
_AGREEMENT: Final = 0.03
_VLLM_S: Final = 600.0

Figures = dict[str, dict[str, float]]


async def main(options: argparse.Namespace) -> int:
    """0 whatever the figures."""
    line: dict[str, Any] = {"bench": "loadgen", "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="baton-loadgen-") as name:
        folder = Path(name)
        if not options.only or options.only == "accuracy":
            line["accuracy"] = await _accuracy(options, folder)
        if not options.only or options.only == "size":
            line["size"] = await _size(options, folder)
        if not options.only or options.only == "vllm":
            line["vllm"] = await _beside_vllm(options, folder)
    print(orjson.dumps(line).decode())
    return 0


# -- accuracy --------------------------------------------------------------------------------------


async def _accuracy(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The rounds' worst errors; the round with the least lag of the client is shown whole."""
    rounds = []
    for number in range(options.rounds):
        with _server("--ttft-ms", "100", "--ttft-spread-ms", "200", "--tpot-ms", "10") as url:
            count = round(options.rate * options.seconds)
            words = ["--num-prompts", count, "--request-rate", options.rate, "--output-len", 16]
            words += ["--processes", 1, "--num-warmups", 200]
            document, rows = await _load(url, folder / f"accuracy-{number}", words)
            truth = await _truth(url)
        errors = compare(measured(document, rows), expected(truth, rows))
        worst = max(errors.values(), key=lambda entry: entry["beyond"])
        rounds.append({"document": document, "errors": errors, "worst": worst})
        lag = document["client"]["lag_ms"]
        print(f"round {number + 1}: client lag p50 {lag['p50']} p99 {lag['p99']} ms", flush=True)
        _print(errors)
    best = min(rounds, key=lambda one: one["worst"]["beyond"])
    client = best["document"]["client"]
    return {
        "rate_rps": options.rate,
        "requests": best["document"]["metrics"]["requests"],
        "within": best["worst"]["beyond"] <= 1.0,
        "rounds_within": sum(one["worst"]["beyond"] <= 1.0 for one in rounds),
        "rounds": len(rounds),
        "worst": best["worst"],
        "client_limited": client["limited"],
        "processor_share": client["processes"][0]["strain"]["processor_share"],
        "errors": {name: [e["ms"], e["share"]] for name, e in best["errors"].items()},
    }


def measured(document: Mapping[str, Any], rows: run_files.Rows) -> Figures:
    """What the load generator says; from the actual send, since the server knows no intention."""
    metrics = document["metrics"]
    e2e = np.sort((rows.numbers["last_s"] - rows.numbers["sent_s"])[rows.ok]) * 1000
    found = {name: _named(metrics[f"{name}_ms"]) for name in ("ttft_sent", "tpot", "itl")}
    return found | {"e2e_sent": _of(e2e), "ttft": _named(metrics["ttft_ms"])}


def expected(truth: Sequence[Mapping[str, Any]], rows: run_files.Rows) -> Figures:
    """What the server wrote, of the same requests. `ttft`: as scripted, from the intended send."""
    wanted = set(rows.marks["trace_id"].tolist())
    kept = [one for one in truth if str(one["trace_id"]).encode() in wanted]
    spans = [one["e2e_s"] - one["ttft_s"] for one in kept]
    tpots = [span / (one["tokens"] - 1) for span, one in zip(spans, kept, strict=True)]
    return {
        "ttft_sent": _of(_ms([one["ttft_s"] for one in kept])),
        "ttft": _of(_ms([one["script"][0] for one in kept])),
        "tpot": _of(_ms(tpots)),
        "itl": _of(_ms([gap for one in kept for gap in one["gaps_s"]])),
        "e2e_sent": _of(_ms([one["e2e_s"] for one in kept])),
    }


def compare(found: Figures, truth: Figures) -> dict[str, dict[str, float]]:
    """Per figure: the error in milliseconds, as a share, and in tolerances (1: just within)."""
    errors = {}
    for name, figures in truth.items():
        for part, true in figures.items():
            off = abs(found[name][part] - true)
            beyond = min(off / _TOLERANCE_MS, off / (true * _TOLERANCE))
            errors[f"{part} {name}"] = {
                "ms": round(off, 4),
                "share": round(off / true, 5),
                "beyond": round(beyond, 3),
                "true_ms": round(true, 3),
            }
    return errors


def _ms(seconds: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.sort(np.asarray(seconds, np.float64)) * 1000


def _of(ordered: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    parts = {f"p{percent:g}": percentile(ordered, percent) or 0.0 for percent in _PERCENTS}
    return {"mean": float(ordered.mean()), **parts}


def _named(spread: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(spread[name]) for name in ("mean", "p50", "p90", "p95", "p99")}


def _print(errors: Mapping[str, Mapping[str, float]]) -> None:
    for name, error in errors.items():
        print(
            f"  {name:<15} true {error['true_ms']:9.3f} ms   off {error['ms']:7.3f} ms "
            f"{error['share']:7.2%}   {'' if error['beyond'] <= 1 else 'BEYOND'}"
        )


# -- size ------------------------------------------------------------------------------------------


async def _size(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    quick = ("--ttft-ms", "5", "--ttft-spread-ms", "5", "--tpot-ms", "1", "--forget")
    with _server(*quick) as url:
        words = ["--num-prompts", options.rows, "--request-rate", options.size_rate]
        words += ["--output-len", 2, "--input-len", 32]
        document, _ = await _load(url, folder / "size", words)
    where = folder / "size"
    page = where / run_files.REPORT
    found = {
        "rows": document["metrics"]["requests"],
        "outcomes": document["counts"]["outcomes"],
        "memory_mib": [
            client["strain"]["memory_mib"] for client in document["client"]["processes"]
        ],
        "report_bytes": page.stat().st_size,
        "csv_bytes": (where / run_files.ROWS).stat().st_size,
        "parquet_bytes": (where / run_files.PARQUET).stat().st_size,
        "report_open_s": await opening_s(page.resolve().as_uri()),
        "client_limited": document["client"]["limited"],
    }
    print(f"memory of each client process, MiB: start, most, end: {found['memory_mib']}")
    if options.keep is not None:
        shutil.copytree(where, options.keep, dirs_exist_ok=True)
    return found


async def opening_s(address: str) -> float | None:
    """Median seconds until Chromium has drawn the page; None where there is no browser."""
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        return None
    found = next((path for name in ("chromium", "chromium-browser", "google-chrome")
                  if (path := shutil.which(name))), None)  # fmt: skip
    if found is None:
        return None
    times = []
    async with async_playwright() as driver:
        args = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await driver.chromium.launch(executable_path=found, args=args)
        for _ in range(_OPENINGS):
            tab = await browser.new_page()
            began_s = time.monotonic()
            await tab.goto(address, wait_until="load")
            # Two frames: the first after layout, the second after it was painted.
            await tab.evaluate(
                "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            times.append(time.monotonic() - began_s)
            await tab.close()
        await browser.close()
    return round(sorted(times)[len(times) // 2], 3)


# -- beside vLLM's own benchmark -----------------------------------------------------------------


async def _beside_vllm(options: argparse.Namespace, folder: Path) -> dict[str, Any] | None:
    """The same requests at the same rate to the same server; None without vLLM (`make bench-engine`
    brings it). Shares by which our figures differ."""
    if not (peers.VENV / "lib").is_dir():
        return None
    count, rate = str(options.vllm_requests), str(options.vllm_rate)
    script = ("--ttft-ms", "100", "--ttft-spread-ms", "200", "--tpot-ms", "10")
    with _server(*script) as url:
        words = ["--num-prompts", count, "--request-rate", rate, "--output-len", 16]
        document, _ = await _load(url, folder / "ours", [*words, "--input-len", 128])
    with _server(*script) as url:
        theirs = await asyncio.to_thread(_run_vllm, url, folder, count, rate)
    metrics = document["metrics"]
    found: dict[str, Any] = {"requests": options.vllm_requests, "rate_rps": options.vllm_rate}
    for name in ("ttft", "tpot", "itl"):
        for ours_part, part in (("mean", "mean"), ("p50", "median"), ("p90", "p90")):
            key = "ttft_sent" if name == "ttft" else name
            ours, other = metrics[f"{key}_ms"][ours_part], theirs[f"{part}_{name}_ms"]
            found[f"{ours_part} {name}"] = [ours, round(other, 3), round(ours / other - 1, 4)]
    shares = [abs(entry[2]) for entry in found.values() if isinstance(entry, list)]
    return {**found, "largest_difference": max(shares), "within": max(shares) <= _AGREEMENT}


def _run_vllm(url: str, folder: Path, count: str, rate: str) -> dict[str, Any]:
    """Raises subprocess.CalledProcessError."""
    tokens = folder / "tokenizer"
    tokens.mkdir()
    launcher = Path(__file__).with_name("engine") / "vllm_bench_serve.py"
    flags = (
        "--backend openai --endpoint /v1/completions --dataset-name random --random-input-len 128 "
        "--random-output-len 16 --ignore-eos --model scripted --disable-tqdm --save-result "
        "--percentile-metrics ttft,tpot,itl --metric-percentiles 90 --result-filename vllm.json "
        f"--num-prompts {count} --request-rate {rate} --base-url {url} --result-dir {folder}"
    )
    command = [peers.python(), str(launcher), str(tokens), *flags.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=_VLLM_S)
    found: dict[str, Any] = orjson.loads((folder / "vllm.json").read_bytes())
    return found


# -- both ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _server(*words: str) -> Iterator[str]:
    """A scripted server in a process of its own; its URL."""
    command = [sys.executable, "-m", "loadgen.load.scripted", "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        try:
            told = process.stdout.readline() if process.stdout is not None else ""
            yield told.split()[-1]
        finally:
            process.terminate()


async def _load(
    url: str, folder: Path, words: Sequence[object]
) -> tuple[dict[str, Any], run_files.Rows]:
    """The command's own code, with its flags."""
    parser = argparse.ArgumentParser()
    flags.add(parser)
    fixed = ["--base-url", url, "--admin-url", "", "--result-dir", folder.parent]
    told = [str(word) for word in (*fixed, "--result-filename", folder.name, *words)]
    options = parser.parse_args(told)
    document = await run.carry_out(setup.read(options), options, run.new_folder(options))
    return document, run_files.read_rows(folder).measured()


async def _truth(url: str) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/truth") as answer:
        found: list[dict[str, Any]] = orjson.loads(await answer.read())
        return found


def parse(argv: list[str]) -> argparse.Namespace:
    """Flags of the bench."""
    parser = argparse.ArgumentParser(prog="bench_loadgen", description=__doc__)
    parser.add_argument("--only", choices=("accuracy", "size", "vllm"), default="")
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--size-rate", type=float, default=700.0)
    parser.add_argument("--vllm-requests", type=int, default=400)
    parser.add_argument("--vllm-rate", type=float, default=20.0)
    parser.add_argument("--keep", type=Path, default=None, help="copy the large run there")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse(sys.argv[1:]))))
