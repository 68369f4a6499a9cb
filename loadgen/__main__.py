"""The load generator's command line: `python -m loadgen run | chaos | trace`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from loadgen import chaos, run, trace


def parser() -> argparse.ArgumentParser:
    """All subcommands with their flags."""
    top = argparse.ArgumentParser(prog="loadgen", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="command")
    for name, module, text in (
        ("run", run, "send an open-loop load and report latencies and cache hits"),
        ("chaos", chaos, "strike a running cluster during a load and report what clients noticed"),
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
