"""The file form: JSON lines. Line 1 says what it is; every other line is one request.

    {"format":"baton.workload/1","name":"chat","block_tokens":16}
    {"at_s":0.0,"prompt_tokens":812,"output_tokens":64,"blocks":[0,1,2]}
    {"at_s":3.5,"prompt_tokens":990,"output_tokens":80,"blocks":[0,1,2,9],"after":0,"session":7}

Lengths, ids and times only; a captured file holds no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import orjson

from loadgen.workloads.request import Request, Workload, WorkloadError, build

FORMAT: Final = "baton.workload/1"
CAPTURED: Final = "captured"
"""Name of a workload whose sessions were clients' own keys."""
_LIMIT_BLOCK_TOKENS: Final = 1 << 16
_LIMIT_LINE_BYTES: Final = 8 << 20
_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    "at_s": (int, float),
    "prompt_tokens": (int,),
    "output_tokens": (int,),
    "blocks": (list,),
    "after": (int, type(None)),
    "session": (int, type(None)),
    "tenant": (str,),
    "priority": (int,),
    "expected_tokens": (int,),
    "ttft_slo_s": (int, float),
    "tpot_slo_s": (int, float),
}
_WISHES: Final = ("priority", "expected_tokens", "ttft_slo_s", "tpot_slo_s")
_NEEDED: Final = ("at_s", "prompt_tokens", "output_tokens")


def write(workload: Workload, path: Path) -> None:
    """Raises OSError."""
    with path.open("wb") as file:
        file.write(orjson.dumps(header(workload.name, workload.block_tokens)) + b"\n")
        for request in workload:
            file.write(line(request) + b"\n")


def header(name: str, block_tokens: int) -> dict[str, object]:
    """The first line; also written by capture."""
    return {"format": FORMAT, "name": name, "block_tokens": block_tokens}


def line(request: Request) -> bytes:
    """One row; fields that have their default are left out."""
    row: dict[str, object] = {
        "at_s": request.at_s,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
    }
    if request.blocks:
        row["blocks"] = request.blocks
    for name in ("after", "session"):
        if (value := getattr(request, name)) is not None:
            row[name] = value
    if request.tenant != "default":
        row["tenant"] = request.tenant
    for name in _WISHES:
        if value := getattr(request, name):
            row[name] = value
    return orjson.dumps(row)


def read(path: Path) -> Workload:
    """Raises WorkloadError naming file, line and field."""
    rows = lines(path)
    _, first = next(rows, (1, {}))
    if first.get("format") != FORMAT:
        raise WorkloadError(f'{path}, line 1: expected {{"format": "{FORMAT}", …}}')
    block_tokens = first.get("block_tokens")
    if type(block_tokens) is not int or not 1 <= block_tokens <= _LIMIT_BLOCK_TOKENS:
        raise WorkloadError(f"{path}, line 1: block_tokens is {block_tokens!r}")
    return build(str(first.get("name", path.stem)), block_tokens, _requests(path, rows))


def lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """(line number, object) of each line of a JSON-lines file; also of foreign traces."""
    try:
        with path.open("rb") as file:
            for number, text in enumerate(iter(lambda: file.readline(_LIMIT_LINE_BYTES), b""), 1):
                try:
                    row = orjson.loads(text)
                except orjson.JSONDecodeError as error:
                    raise WorkloadError(f"{path}, line {number}: not JSON: {error}") from None
                if not isinstance(row, dict):
                    raise WorkloadError(f"{path}, line {number}: expected an object")
                yield number, row
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from None


def _requests(path: Path, rows: Iterator[tuple[int, dict[str, object]]]) -> Iterator[Request]:
    for number, row in rows:
        yield read_row(f"{path}, line {number}", row)


def read_row(where: str, row: Mapping[str, object]) -> Request:
    """One row. Raises WorkloadError naming the place and the field."""
    for name in _NEEDED:
        if name not in row:
            raise WorkloadError(f"{where}: {name} is missing")
    for name, value in row.items():
        expected = _FIELDS.get(name)
        if expected is None:
            raise WorkloadError(f"{where}: unknown field {name!r}")
        if type(value) not in expected:
            raise WorkloadError(f"{where}: {name} is {value!r}")
    blocks = {"blocks": _ids(where, row.get("blocks", ()))}
    return Request(**dict(row) | blocks)  # type: ignore[arg-type]


def _ids(where: str, blocks: object) -> tuple[int, ...]:
    if not isinstance(blocks, list | tuple) or any(type(block) is not int for block in blocks):
        raise WorkloadError(f"{where}: blocks must be a list of whole numbers")
    return tuple(blocks)
