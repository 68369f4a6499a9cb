"""`python -m loadgen capture`: a running cluster's traffic as a workload file: lengths, block ids,
times and hints, never a text. `loadgen run --dataset-path FILE` plays it again live, `loadgen sim
run --workload FILE` in the simulator.

Rows are kept in FILE.part as they come, so that a full disk or a kill costs no more than the last
second; `--recover` makes a workload of what lies there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import aiohttp
import orjson

from loadgen.workloads import file
from loadgen.workloads.request import Request, Workload, WorkloadError, build

PART_FORMAT: Final = "baton.capture.part/1"
WIRE_FORMAT: Final = "baton.capture/1"
MOST_ROWS: Final = 1_000_000
_LINE_BYTES: Final = 1 << 20
_SILENCE_S: Final = 30.0
_FLUSH_S: Final = 1.0
_NUMBERS: Final = ("expected_tokens", "ttft_slo_s", "tpot_slo_s", "priority")


class CaptureError(ValueError):
    """What was received or found is no capture: says where and what."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--admin-url", default="http://127.0.0.1:8001")
    parser.add_argument("--out", type=Path, default=Path("captured.jsonl"), help="workload file")
    parser.add_argument("--duration", type=float, default=0.0, help="seconds; 0: until Ctrl-C")
    parser.add_argument("--count", type=int, default=MOST_ROWS, help="requests at most")
    parser.add_argument("--recover", type=Path, default=None, metavar="PART", help="its rows")


async def main(options: argparse.Namespace) -> int:
    """0: the file was written; 1: it was not, and why stands on standard error."""
    part = options.recover or options.out.with_name(options.out.name + ".part")
    try:
        if options.recover is None:
            await _record(options, part)
        found = recover(part)
        _replace(found, options.out)
    except (CaptureError, WorkloadError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"loadgen: {options.out} cannot be written ({error.strerror or error}); what came so "
            f"far is in {part}: make room, then `python -m loadgen capture --recover {part} "
            f"--out FILE`",
            file=sys.stderr,
        )
        return 1
    part.unlink(missing_ok=True)
    print(
        f"workload        {options.out}   ({len(found)} requests, ideal hit {found.ideal_hit:.3f})"
    )
    print(f"live again      python -m loadgen run --ignore-eos --dataset-path {options.out}")
    print(f"simulated       python -m loadgen sim run --workload {options.out}")
    return 0


async def _record(options: argparse.Namespace, part: Path) -> None:
    """Until the time is over, enough came, or Ctrl-C. Raises CaptureError, OSError."""
    if await asyncio.to_thread(part.exists):
        raise CaptureError(f"{part} is left of an earlier capture: --recover or remove it")
    counts: Counter[str] = Counter()
    url = f"{options.admin_url.rstrip('/')}/admin/capture"
    try:
        async with asyncio.timeout(options.duration or None), aclosing(watch(url)) as lines:
            await _take_in(lines, part, options.count, counts)
    except aiohttp.ClientError as error:
        if not counts["heard"]:
            raise CaptureError(f"{options.admin_url} does not answer: {error}") from None
        print(f"loadgen: the connection broke ({error}); what came is kept", file=sys.stderr)
    except (TimeoutError, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            task.uncancel()  # Ctrl-C ends the capture, and what came is kept
    del counts["heard"]
    for name, count in sorted(counts.items()):
        print(f"{name:<16}{count}", file=sys.stderr)


async def watch(url: str) -> AsyncGenerator[dict[str, Any], None]:
    """Lines of the gateway; the first says what it sends. Raises aiohttp.ClientError,
    CaptureError."""
    limit = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_S)
    async with (
        aiohttp.ClientSession(timeout=limit, read_bufsize=_LINE_BYTES) as session,
        session.get(url) as answer,
    ):
        if answer.status != 200:
            raise CaptureError(f"{url} answers {answer.status}: is this a gateway of this version?")
        async for line in answer.content:
            yield read_line(line)


def read_line(line: bytes) -> dict[str, Any]:
    """One line of the wire. Raises CaptureError."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise CaptureError("the gateway sent a line that is not JSON") from None
    if not isinstance(found, dict):
        raise CaptureError("the gateway sent a line that is not an object")
    return found


async def _take_in(
    lines: AsyncIterator[dict[str, Any]], part: Path, most: int, counts: Counter[str]
) -> None:
    head = await anext(lines, None)
    if head is None or head.get("format") != WIRE_FORMAT:
        raise CaptureError(f"expected {WIRE_FORMAT} from the gateway, not {head}")
    counts["heard"] = 1
    ids = Ids(int(head["block_tokens"]))
    with part.open("xb") as out:
        out.write(orjson.dumps({"format": PART_FORMAT, "block_tokens": ids.block_tokens}) + b"\n")
        out.flush()
        flushed_s = time.monotonic()
        async for line in lines:
            if "at_s" in line:
                out.write(file.line(ids.request(line)) + b"\n")
                counts[f"requests {line.get('outcome', '')}"] += 1
                counts["requests"] += 1
            counts.update({name: int(line[name]) for name in ("lost", "unplaced") if name in line})
            if time.monotonic() - flushed_s > _FLUSH_S or counts["requests"] >= most:
                _keep(out)
                flushed_s = time.monotonic()
            if counts["requests"] >= min(most, MOST_ROWS):
                return


def _keep(out: BinaryIO) -> None:
    """On the disk, or OSError now and not at the end."""
    out.flush()
    os.fsync(out.fileno())


class Ids:
    """Small numbers for the digests of blocks and sessions, in the order in which they came: a
    file holds none of the digests."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._blocks: dict[str, int] = {}
        self._sessions: dict[str, int] = {}
        self._next = 0

    def request(self, row: Mapping[str, Any]) -> Request:
        """Of one line. Raises CaptureError naming the field."""
        tokens = _whole(row, "prompt_tokens")
        named = row.get("blocks")
        most = tokens // self.block_tokens
        if not isinstance(named, list) or len(named) > most or not all(map(_is_digest, named)):
            raise CaptureError(f"blocks must be at most {most} digests")
        blocks = [self._number(name) for name in named]
        # Positions without a name, such as the last, unfinished block, are shared with nobody.
        blocks += [self._fresh() for _ in range(-(-tokens // self.block_tokens) - len(named))]
        session = row.get("session")
        if session is not None and not _is_digest(session):
            raise CaptureError("session must be a digest")
        hints = {name: _number(row, name) for name in _NUMBERS if name in row}
        return Request(
            at_s=_number(row, "at_s"),
            prompt_tokens=tokens,
            output_tokens=max(1, _whole(row, "output_tokens")),
            blocks=tuple(blocks),
            session=None
            if session is None
            else self._sessions.setdefault(session, len(self._sessions)),
            **hints,
        )

    def _number(self, name: str) -> int:
        found = self._blocks.get(name)
        if found is None:
            found = self._blocks[name] = self._fresh()
        return found

    def _fresh(self) -> int:
        self._next += 1
        return self._next - 1


def recover(part: Path) -> Workload:
    """The rows of a part file in order of their times; a last line that was cut off is left out.
    Raises CaptureError, WorkloadError naming file and line."""
    rows = _part_rows(part)
    _, head = next(rows, (1, {}))
    size = head.get("block_tokens")
    if head.get("format") != PART_FORMAT or type(size) is not int:
        raise CaptureError(f"{part}, line 1: expected {PART_FORMAT}")
    requests = [file.read_row(f"{part}, line {number}", row) for number, row in rows]
    if not requests:
        raise CaptureError("no request ended while the capture ran: nothing was written")
    requests.sort(key=lambda request: request.at_s)
    first_s = requests[0].at_s
    moved = [replace(request, at_s=request.at_s - first_s) for request in requests]
    return build(file.CAPTURED, size, moved)


def _part_rows(part: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Like `file.lines`, but the end may be missing."""
    try:
        lines = part.read_bytes().split(b"\n")
    except OSError as error:
        raise CaptureError(f"{part}: {error.strerror or error}") from None
    for number, text in enumerate(lines[:-1], 1):
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise CaptureError(f"{part}, line {number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise CaptureError(f"{part}, line {number}: expected an object")
        yield number, row


def _replace(found: Workload, path: Path) -> None:
    """The whole file or the old one, never half of it. Raises OSError."""
    beside = path.with_name(path.name + ".new")
    try:
        file.write(found, beside)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _is_digest(name: object) -> bool:
    return isinstance(name, str) and len(name) == 16 and set(name) <= set("0123456789abcdef")


def _whole(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if type(value) is not int or value < 0:
        raise CaptureError(f"{name} is {value!r}; expected a whole number")
    return value


def _number(row: Mapping[str, Any], name: str) -> Any:
    value = row.get(name)
    if type(value) not in (int, float):
        raise CaptureError(f"{name} is {value!r}; expected a number")
    return value
