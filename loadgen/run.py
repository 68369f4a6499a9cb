"""`python -m loadgen run`: an open-loop stream of chats, a row per request, then figures."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp
import orjson

from loadgen import arrivals, prompts, records, report
from loadgen.client import ChatClient, Target, first_model
from loadgen.records import Row

EXIT_CLIENT_LIMITED: Final = 3
EXIT_ERRORS: Final = 5
_ERROR_SHARE: Final = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the run."""
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", help="server to load")
    parser.add_argument("--model", default="", help="default: the first of /v1/models")
    parser.add_argument("--request-rate", type=float, default=1.0, help="requests/s, or inf")
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=256, help="words per prompt")
    parser.add_argument("--output-len", type=int, default=32, help="max_tokens of each request")
    parser.add_argument("--shared-prefix", type=float, default=0.0, help="share of words, 0..1")
    parser.add_argument("--groups", type=int, default=4, help="different shared prefixes")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--ignore-eos", action="store_true", help="always output-len tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per request")
    parser.add_argument("--result-dir", type=Path, default=Path("results"))


async def main(options: argparse.Namespace) -> int:
    """Run the load, write the rows, print the figures. The exit code says whether to trust them."""
    try:
        schedule = arrivals.poisson(options.request_rate, options.num_prompts, options.seed)
        texts = prompts.build(_plan(options), options.num_prompts)
    except ValueError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return 2
    try:
        rows = await _send_all(options, schedule, texts)
    except aiohttp.ClientError as error:
        print(f"loadgen: {options.base_url} does not answer: {error}", file=sys.stderr)
        return 1
    folder = options.result_dir / time.strftime("run-%Y%m%d-%H%M%S")
    figures = report.summarise(rows)
    records.write_csv(rows, folder / "requests.csv")
    (folder / "run.json").write_bytes(orjson.dumps(_document(options, figures)))
    print(report.render(figures))
    print(f"rows            {folder}/requests.csv   (python -m loadgen trace <trace_id>)")
    return _exit_code(rows, figures)


async def _send_all(
    options: argparse.Namespace, schedule: Sequence[float], texts: Sequence[prompts.Prompt]
) -> list[Row]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        base_url = options.base_url.rstrip("/")
        target = Target(
            base_url=base_url,
            model=options.model or await first_model(session, base_url),
            max_tokens=options.output_len,
            temperature=options.temperature,
            ignore_eos=options.ignore_eos,
            timeout_s=options.timeout,
        )
        started = time.monotonic()
        client = ChatClient(session, target, started)
        rows: list[Row] = []
        async with asyncio.TaskGroup() as tasks:
            for number, (intended_s, prompt) in enumerate(zip(schedule, texts, strict=True)):
                delay_s = started + intended_s - time.monotonic()
                if delay_s > 0:
                    await asyncio.sleep(delay_s)
                row = Row(number, prompt.group, intended_s, trace_id="")
                rows.append(row)
                tasks.create_task(client.chat(prompt.text, row), name=f"request-{number}")
                _progress(rows, len(schedule))
        _progress(rows, len(schedule))
    return rows


def _plan(options: argparse.Namespace) -> prompts.PromptPlan:
    shared = round(options.input_len * options.shared_prefix)
    return prompts.PromptPlan(options.input_len, shared, options.groups, options.seed)


def _document(options: argparse.Namespace, figures: dict[str, object]) -> dict[str, object]:
    command = {name: str(value) for name, value in sorted(vars(options).items()) if name != "call"}
    return {"schema": "baton.run/1", "source": "live", "options": command, "metrics": figures}


def _progress(rows: Sequence[Row], total: int) -> None:
    if sys.stderr.isatty():
        ended = sum(row.outcome != "incomplete" for row in rows)
        print(f"\r{len(rows)}/{total} sent, {ended} ended", end="", file=sys.stderr, flush=True)


def _exit_code(rows: Sequence[Row], figures: dict[str, object]) -> int:
    failed = sum(row.outcome != "ok" for row in rows)
    if failed > _ERROR_SHARE * len(rows):
        return EXIT_ERRORS
    return EXIT_CLIENT_LIMITED if report.client_limited(figures) else 0
