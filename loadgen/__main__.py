"""The load generator's command line: `python -m loadgen run | report | compare | …`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from loadgen import ab, capture, chaos, compare, report, run, simulate, trace


def parser() -> argparse.ArgumentParser:
    """All subcommands with their flags."""
    top = argparse.ArgumentParser(prog="loadgen", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="command")
    for name, module, text in (
        ("run", run, "send a load to any OpenAI-compatible server and report what it felt"),
        ("ab", ab, "one schedule to two servers in turns, compared request by request"),
        ("report", report, "judge a run's rows again and write its page anew"),
        ("compare", compare, "do two runs differ by more than noise?"),
        ("chaos", chaos, "strike a running cluster during a load and report what clients noticed"),
        ("sim", simulate, "play workloads on simulated fleets of the live cores; plan a fleet"),
        ("capture", capture, "record a cluster's traffic as lengths, blocks and times; no text"),
        ("trace", trace, "draw the waterfall of one request"),
    ):
        command = commands.add_parser(
            name, help=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(call=module.main)
    return top


if __name__ == "__main__":
    options = parser().parse_args()
    sys.exit(asyncio.run(options.call(options)))
