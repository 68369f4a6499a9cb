"""`make bench-handoff`: what a handoff costs, and how much of it anyone notices.

Raw transfers between two processes against the bare library and TCP; colocated against 1 prefill
+ 1 decode on the real model; the pace of running sequences with and without handoffs. One run,
everything in turn; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping

import orjson

from loadgen.handoff import clusters, pace, transfers
from loadgen.handoff.figures import Measured
from loadgen.handoff.transfers import Transfers
from services.fetch import resolve
from shared.errors import StartupError

_MEBIBYTE = 1 << 20


async def main(options: argparse.Namespace) -> int:
    """Measure all three parts, print the tables and the line of JSON."""
    sizes = transfers.SIZES[:3:2] if options.quick else transfers.SIZES
    size = (8 if options.quick else 96) * _MEBIBYTE
    moved = await transfers.measure(
        sizes, options.transfer_rounds, options.transport, size, options.at_once
    )
    _print_transfers(moved)
    if options.only == "transfers":
        print(orjson.dumps(_moved(moved)).decode())
        return 0
    model = resolve(options.model, clusters.note)
    rounds = dict.fromkeys(options.lengths, options.rounds)
    if not options.quick:
        rounds[max(rounds)] = max(1, options.rounds - 1)  # the long one takes most of the time
    async with clusters.both_sides(model) as (together, split):
        found = await clusters.measure(together, split, rounds)
        running = await pace.measure(together, split, options.pace_tokens, options.pairs)
    _print_lengths(found)
    for name, value in running.figures().items():
        print(f"{name:<20}{value:>14}")
    print(orjson.dumps(summary(moved, found, running)).decode())
    return 0


def summary(
    moved: Transfers, found: Mapping[int, Measured], running: pace.Pace
) -> dict[str, object]:
    """The last line: the worst size counts, and the longest prompt."""
    longest = found[max(found)].figures()
    return {
        **_moved(moved),
        f"hidden_share_{_thousands(max(found))}": longest["hidden_share"],
        "tpot_change": running.figures()["tpot_change"],
        "lengths": {str(length): measured.figures() for length, measured in found.items()},
        "pace": running.figures(),
    }


def _moved(moved: Transfers) -> dict[str, object]:
    return {
        "bench": "handoff",
        "ratio_to_raw": moved.worst("raw"),
        "ratio_to_tcp": moved.worst("tcp"),
        "transport": moved.transport,
        "at_once": moved.at_once,
        "sizes": {_size(size): rates.figures() for size, rates in moved.sizes.items()},
    }


def _print_transfers(moved: Transfers) -> None:
    print(f"{moved.transport}: GB/s as median (least, most); ratios round by round")
    for size, rates in moved.sizes.items():
        cells = [f"{_size(size):>8}"]
        for name in ("plane", "raw", "tcp"):
            values = rates.found[name]
            middle = sorted(values)[len(values) // 2]
            cells.append(f"{name} {middle:6.2f} ({min(values):5.2f},{max(values):6.2f})")
        cells += [f"{rates.ratio('raw'):6.2f} of raw", f"{rates.ratio('tcp'):6.2f} of tcp"]
        print("  ".join(cells), flush=True)


def _print_lengths(found: Mapping[int, Measured]) -> None:
    table = {length: measured.figures() for length, measured in found.items()}
    for name in next(iter(table.values())):
        print(f"{name:<20}" + "".join(f"{row[name]!s:>14}" for row in table.values()))


def _size(size: int) -> str:
    return f"{size >> 20}MiB" if size >= _MEBIBYTE else f"{size >> 10}KiB"


def _thousands(tokens: int) -> str:
    return f"{tokens >> 10}k" if tokens >= 1024 else str(tokens)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_handoff", description=__doc__)
    parser.add_argument("--model", default="", help="GGUF file or Hugging Face folder")
    parser.add_argument("--transport", default="auto", choices=("auto", "tcp"))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument(
        "--rounds", type=int, default=3, help="per length; the longest has one less"
    )
    parser.add_argument("--transfer-rounds", type=int, default=7)
    parser.add_argument(
        "--at-once", type=int, default=transfers.AT_ONCE, help="transfers on their way, for all"
    )
    parser.add_argument("--only", choices=("transfers",), help="leave out what needs a model")
    parser.add_argument("--pace-tokens", type=int, default=512, help="prompts of the pace part")
    parser.add_argument("--pairs", type=int, default=6, help="windows with and without handoffs")
    parser.add_argument("--quick", action="store_true", help="see that it runs; figures say little")
    options = parser.parse_args(argv)
    if options.quick:
        options.lengths, options.pace_tokens = [128], 256
        options.rounds = options.transfer_rounds = options.pairs = 1
    return options


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(parse(sys.argv[1:]))))
    except (StartupError, TimeoutError) as error:
        reason = error.message if isinstance(error, StartupError) else "no answer in time"
        print(f"bench_handoff: {reason}", file=sys.stderr)
        sys.exit(2)
