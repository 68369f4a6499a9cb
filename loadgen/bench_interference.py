"""`make bench-interference`: what running sequences feel when a long prompt arrives.

Real processes, the real model. Gaps between tokens of sequences that decode are measured while a
prompt is computed: as one step, in chunks beside them at several budgets, by a prefill worker.
The sides take turns in one run; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Final

import orjson

from loadgen.handoff.clusters import fresh_prompt, note
from loadgen.interference import sides, windows
from loadgen.interference.figures import Measured, summary
from services.fetch import resolve
from shared.errors import StartupError

_WARM_TOKENS: Final = 64


async def main(options: argparse.Namespace) -> int:
    """Measure in turn, print a table and the line of JSON."""
    model = resolve(options.model, note)
    wanted = sides.settings(options.budgets)
    found = {one.name: Measured() for one in wanted}
    tokens = 0
    async with sides.running(model, wanted) as running:
        for name, side in running.items():
            await side.ask(fresh_prompt(_WARM_TOKENS, seed=0))
            found[name].budget = await sides.budgets_of(side)
        for number in range(options.rounds):
            turn = number % len(wanted)
            for one in (*wanted[turn:], *wanted[:turn]):
                seed = 10_000 * (number + 1)
                window = await windows.measure(
                    running[one.name],
                    options.streams,
                    options.prompt_tokens,
                    options.quiet_pieces,
                    seed,
                )
                found[one.name].windows.append(window)
                tokens = max(tokens, window.prompt_tokens)
                worst = max(window.busy_ms)
                note(
                    f"round {number + 1}/{options.rounds}: {one.name} "
                    f"ttft {window.ttft_s:.1f} s, largest gap {worst:.0f} ms"
                )
    line = summary(found, tokens, options.streams, os.cpu_count() or 1)
    _print_table(found)
    print(orjson.dumps(line).decode())
    return 0


def _print_table(found: dict[str, Measured]) -> None:
    table = {name: measured.figures() for name, measured in found.items()}
    print(f"{'':<20}" + "".join(f"{name:>16}" for name in table))
    for row in next(iter(table.values())):
        print(f"{row:<20}" + "".join(f"{figures[row]!s:>16}" for figures in table.values()))


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_interference", description=__doc__)
    parser.add_argument("--model", default="", help="GGUF file or Hugging Face folder")
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--streams", type=int, default=4, help="sequences that decode meanwhile")
    parser.add_argument("--budgets", type=int, nargs="*", default=[64, 256, 512])
    parser.add_argument("--rounds", type=int, default=3, help="windows of each side")
    parser.add_argument(
        "--quiet-pieces", type=int, default=20, help="per stream, before the prompt"
    )
    parser.add_argument("--quick", action="store_true", help="a shorter prompt, once, one budget")
    options = parser.parse_args(argv)
    if options.quick:
        options.prompt_tokens, options.rounds, options.budgets = 1_024, 1, [128]
    return options


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(parse(sys.argv[1:]))))
    except StartupError as error:
        print(f"bench_interference: {error.message}", file=sys.stderr)
        sys.exit(2)
