"""`python -m loadgen sim calibrate RUN`: a price list learnt from a live run, for `--costs FILE`.

RUN is a folder that `loadgen run` wrote. Its spans are read from RUN/spans.jsonl, or fetched from
the gateway while it still has them, and kept there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson

from loadgen import trace
from loadgen.calibration import costs as costs_file
from loadgen.calibration.learn import Learnt, learn
from loadgen.calibration.run_folder import SPANS, RunError, read_rows, read_spans, write_spans

NAME: Final = "calibrate"
TEXT: Final = "learn a price list from a live run"
KV_TOKENS: Final = 1 << 16


def add_arguments(part: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    part.add_argument("run", type=Path, help="folder with requests.csv")
    part.add_argument("--admin-url", default="", help="where to fetch spans; '': RUN/spans.jsonl")
    part.add_argument("--kv-tokens", type=int, default=KV_TOKENS, help="room of one worker")
    part.add_argument("--out", type=Path, default=None, help="costs file; default RUN/costs.json")


async def main(options: argparse.Namespace) -> int:
    """0; raises RunError, WorkloadError."""
    folder: Path = options.run
    if options.kv_tokens < 1:
        raise RunError(f"--kv-tokens is {options.kv_tokens}; expected at least 1")
    if options.admin_url:
        ids = [row.trace_id for row in read_rows(folder) if row.trace_id]
        write_spans(folder, await fetched(options.admin_url, ids))
    elif not (folder / SPANS).is_file():
        raise RunError(f"{folder / SPANS} is absent; name a gateway with --admin-url")
    learnt = calibrate(folder, options.kv_tokens)
    path: Path = options.out or folder / "costs.json"
    costs_file.write(learnt.costs, path)
    show(learnt)
    print(f"costs           {path}   (python -m loadgen sim run --costs {path})")
    line = {"bench": "sim-calibrate", **asdict(learnt.costs), "off": learnt.off}
    print(orjson.dumps(line | learnt.observations).decode())
    return 0


def calibrate(folder: Path, kv_tokens: int = KV_TOKENS) -> Learnt:
    """Raises RunError, WorkloadError."""
    return learn(folder.name, read_rows(folder), read_spans(folder), kv_tokens)


async def fetched(admin_url: str, ids: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Traces that the gateway still has. Raises RunError where it does not answer."""
    try:
        found = [await trace.fetch(admin_url, trace_id) for trace_id in ids]
    except (TimeoutError, aiohttp.ClientError) as error:
        raise RunError(f"{admin_url} does not answer: {error}") from None
    kept = [spans for spans in found if spans]
    if len(kept) < len(ids):
        print(f"{len(ids) - len(kept)} of {len(ids)} traces are gone", file=sys.stderr)
    return kept


def show(learnt: Learnt) -> None:
    """The fits and how far they are off, for people."""
    for name, value in asdict(learnt.costs).items():
        shown = f"{value:.6g}" if isinstance(value, float) else value
        print(f"{name:<18}{shown:>18}")
    for name, off in learnt.off.items():
        print(f"{name + ' fit is off':<24}{off:>11.1%}")
