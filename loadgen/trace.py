"""`python -m loadgen trace <id>`: fetch one trace from the gateway's store and draw it."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any

import aiohttp
import orjson

from loadgen import waterfall


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("id", help="trace id or request id, as in x-baton-trace-id")
    parser.add_argument("--admin-url", default="http://127.0.0.1:8001")
    parser.add_argument("--json", action="store_true", help="print the spans instead")


async def fetch(admin_url: str, trace_id: str) -> list[dict[str, Any]]:
    """All spans of a trace; empty when the store does not know it (yet)."""
    url = f"{admin_url.rstrip('/')}/admin/traces/{trace_id}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        if response.status == 404:
            return []
        response.raise_for_status()
        found = orjson.loads(await response.read())
    return list(found["spans"])


async def main(options: argparse.Namespace) -> int:
    """Print the waterfall; exit 1 when there is none."""
    try:
        spans = await fetch(options.admin_url, options.id)
    except aiohttp.ClientError as error:
        print(f"loadgen: {options.admin_url} does not answer: {error}", file=sys.stderr)
        return 1
    if not spans:
        print("loadgen: no such trace; spans arrive a moment after the answer", file=sys.stderr)
        return 1
    if options.json:
        print(orjson.dumps(spans, option=orjson.OPT_INDENT_2).decode())
    else:
        print(waterfall.render(spans, width=shutil.get_terminal_size((140, 24)).columns))
    return 0
