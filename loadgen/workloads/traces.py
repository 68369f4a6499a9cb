"""Readers of published traces: Mooncake (FAST'25), Azure LLM inference 2023, BurstGPT, Vidur's
lengths.

Originals: github.com/kvcache-ai/Mooncake (FAST25-release/traces), github.com/microsoft/vidur,
github.com/Azure/AzurePublicDataset, github.com/HPMLL/BurstGPT. Each line is checked; a bad one is
named.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from loadgen.workloads.file import lines
from loadgen.workloads.request import Request, Workload, WorkloadError, build

MOONCAKE_BLOCK_TOKENS: Final = 512
_UNSHARED_BLOCK_TOKENS: Final = 16


def mooncake(path: Path, speed: float = 1.0) -> Workload:
    """Arrivals `speed` times as fast as recorded. Blocks of 512 tokens. Raises WorkloadError."""
    return build(path.stem, MOONCAKE_BLOCK_TOKENS, _mooncake(path, _speed(speed)))


def _mooncake(path: Path, speed: float) -> Iterator[Request]:
    latest = 0
    for number, row in lines(path):
        where = f"{path}, line {number}"
        stamp = _whole(where, row, "timestamp", least=0)
        if stamp < latest:
            raise WorkloadError(f"{where}: timestamp {stamp} is before {latest}; sort the trace")
        latest = stamp
        tokens = _whole(where, row, "input_length", least=1)
        ids = row.get("hash_ids")
        if not isinstance(ids, list) or any(type(block) is not int for block in ids):
            raise WorkloadError(f"{where}: hash_ids must be a list of whole numbers")
        if len(ids) != (wanted := -(-tokens // MOONCAKE_BLOCK_TOKENS)):
            raise WorkloadError(
                f"{where}: {len(ids)} hash_ids contradict input_length {tokens} ({wanted} blocks)"
            )
        yield Request(
            at_s=stamp / 1000 / speed,
            prompt_tokens=tokens,
            output_tokens=_whole(where, row, "output_length", least=1),
            blocks=tuple(ids),
        )


def azure(path: Path, speed: float = 1.0) -> Workload:
    """One hour of arrivals and lengths; nothing is shared. Raises WorkloadError."""
    return build(path.stem, _UNSHARED_BLOCK_TOKENS, _azure(path, _speed(speed)))


def _azure(path: Path, speed: float) -> Iterator[Request]:
    first: datetime | None = None
    for number, row in _table(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        where = f"{path}, line {number}"
        try:
            # datetime knows microseconds; the file has seven digits.
            at = datetime.fromisoformat(str(row["TIMESTAMP"])[:26])
        except ValueError:
            raise WorkloadError(f"{where}: TIMESTAMP is {row['TIMESTAMP']!r}") from None
        first = first or at
        yield Request(
            at_s=_after(where, (at - first).total_seconds()) / speed,
            prompt_tokens=_whole(where, row, "ContextTokens", least=1),
            # Requests that generated nothing still produced their end token.
            output_tokens=max(1, _whole(where, row, "GeneratedTokens", least=0)),
        )


def burstgpt(path: Path, most: int) -> tuple[Workload, int]:
    """The first `most` answered requests of BurstGPT, and how many failed ones were left out on
    the way. Raises WorkloadError."""
    dropped = 0
    rows: list[Request] = []
    begun_s: float | None = None
    for number, row in _table(path, ("Timestamp", "Request tokens", "Response tokens")):
        if len(rows) >= most:
            break
        where = f"{path}, line {number}"
        output = _whole(where, row, "Response tokens", least=0)
        if output == 0:
            dropped += 1
            continue
        try:
            at_s = float(str(row["Timestamp"]))
        except ValueError:
            raise WorkloadError(f"{where}: Timestamp is {row['Timestamp']!r}") from None
        begun_s = at_s if begun_s is None else begun_s
        prompt = _whole(where, row, "Request tokens", least=1)
        rows.append(
            Request(at_s=_after(where, at_s - begun_s), prompt_tokens=prompt, output_tokens=output)
        )
    return build(path.stem, _UNSHARED_BLOCK_TOKENS, rows), dropped


def vidur(path: Path, times: Sequence[float], seed: int = 0) -> Workload:
    """Length pairs drawn with replacement at the given times: the file has none."""
    names = ("num_prefill_tokens", "num_decode_tokens")
    pairs = [
        tuple(_whole(f"{path}, line {number}", row, name, least=1) for name in names)
        for number, row in _table(path, names)
    ]
    if not pairs:
        raise WorkloadError(f"{path}: no rows")
    chance = random.Random(f"vidur:{seed}")
    drawn = [chance.choice(pairs) for _ in times]
    return build(
        path.stem,
        _UNSHARED_BLOCK_TOKENS,
        (
            Request(at_s=at_s, prompt_tokens=pair[0], output_tokens=pair[1])
            for at_s, pair in zip(times, drawn, strict=True)
        ),
    )


def _table(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, object]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise WorkloadError(f"{path}, line 1: no column {missing[0]}")
            for row in reader:
                yield reader.line_num, dict(row)
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: {error}") from None


def _whole(where: str, row: dict[str, object], name: str, least: int) -> int:
    value = row.get(name)
    if isinstance(value, str):
        # Vidur's table was written by pandas: some whole numbers have a ".0".
        value = int(text) if (text := value.removesuffix(".0")).isdecimal() else value
    if type(value) is not int or value < least:
        raise WorkloadError(f"{where}: {name} is {value!r}; expected a number of at least {least}")
    return value


def _after(where: str, at_s: float) -> float:
    if at_s < 0:
        raise WorkloadError(f"{where}: TIMESTAMP is before the first; sort the trace")
    return at_s


def _speed(speed: float) -> float:
    if not 0 < speed < float("inf"):
        raise WorkloadError(f"speed is {speed}; expected a positive number")
    return speed
