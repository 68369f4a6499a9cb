"""ServeGen's client profiles (Alibaba): each client has its own rate, burstiness and lengths,
by window of the day; a workload is the sum of its clients.

Original: github.com/alibaba/ServeGen, data/language and data/reason. `NAME-trace.csv` holds rate
and CV by window of 600 s, `NAME-dataset.json` length distributions by window of 6 h.
"""

from __future__ import annotations

import ast
import bisect
import csv
import heapq
import itertools
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadgen.workloads.request import Request, Workload, WorkloadError, build

_BLOCK_TOKENS: Final = 16
_WINDOW_S: Final = 600.0
_SHAPES: Final = ("Gamma", "Weibull", "")


@dataclass(frozen=True, slots=True)
class Window:
    """Arrivals between start and start + 600 s."""

    start_s: float
    rate_per_s: float
    cv: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """A discrete distribution of token counts."""

    values: tuple[int, ...]
    bounds: tuple[float, ...]
    """Cumulated probability up to each value; the last is their sum."""

    def draw(self, chance: random.Random) -> int:
        place = bisect.bisect_right(self.bounds, chance.random() * self.bounds[-1])
        return max(1, self.values[min(place, len(self.values) - 1)])


@dataclass(frozen=True, slots=True)
class Client:
    """One anonymous client: windows of arrivals, and (start, prompt, output) of each 6 h."""

    name: str
    windows: tuple[Window, ...]
    lengths: tuple[tuple[float, Lengths, Lengths], ...]

    def requests(self, begin_s: float, rate: float, seed: int) -> Iterator[Request]:
        """Gamma gaps within each window, at `rate` times the recorded rate; times from 0."""
        chance = random.Random(f"servegen:{self.name}:{seed}")
        for window, next_s in zip(
            self.windows, [*(w.start_s for w in self.windows[1:]), math.inf], strict=True
        ):
            stop_s = min(next_s, window.start_s + _WINDOW_S)
            if window.rate_per_s <= 0 or stop_s <= begin_s:
                continue
            pair = self._lengths_at(window.start_s)
            if pair is None:
                continue
            now_s = max(window.start_s, begin_s)
            shape = 1 / max(window.cv, 1e-3) ** 2
            mean_s = 1 / (window.rate_per_s * rate)
            while (now_s := now_s + chance.gammavariate(shape, mean_s / shape)) < stop_s:
                yield Request(
                    at_s=now_s - begin_s,
                    prompt_tokens=pair[0].draw(chance),
                    output_tokens=pair[1].draw(chance),
                    tenant=self.name,
                )

    def _lengths_at(self, at_s: float) -> tuple[Lengths, Lengths] | None:
        place = bisect.bisect_right([start for start, _, _ in self.lengths], at_s) - 1
        return self.lengths[place][1:] if place >= 0 else None


def mix(
    folder: Path, model: str, begin_s: float, limit: int, rate: float = 1.0, seed: int = 0
) -> Workload:
    """The first `limit` requests after `begin_s` of all clients of one model together. Raises
    WorkloadError, also where nobody sent anything."""
    clients = [read(folder, name) for name in names(folder, model)]
    if not clients:
        raise WorkloadError(f"{folder}: no clients of {model!r}")
    if not (rate > 0 and limit > 0 and begin_s >= 0):
        raise WorkloadError("a mix needs a positive rate and at least one request")
    streams = [client.requests(begin_s, rate, seed) for client in clients]
    merged = heapq.merge(*streams, key=lambda request: request.at_s)
    return build(f"servegen:{model}", _BLOCK_TOKENS, itertools.islice(merged, limit))


def names(folder: Path, model: str) -> list[str]:
    """Clients of a model: 'm-small', 'm-mid', 'm-large', 'deepseek-r1'."""
    suffix = "-trace.csv"
    return sorted(path.name[: -len(suffix)] for path in folder.glob(f"{model}-chunk-*{suffix}"))


def read(folder: Path, name: str) -> Client:
    """Raises WorkloadError naming file, line and field."""
    windows = tuple(_windows(folder / f"{name}-trace.csv"))
    return Client(name, windows, tuple(_lengths(folder / f"{name}-dataset.json")))


def _windows(path: Path) -> Iterator[Window]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                yield _window(f"{path}, line {number}", row)
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: {error}") from None


def _window(where: str, row: Sequence[str]) -> Window:
    try:
        start_s, rate, cv = (float(cell) for cell in row[:3])
        shape = row[3]
    except (ValueError, IndexError):
        raise WorkloadError(f"{where}: expected start, rate, CV, shape") from None
    if shape not in _SHAPES or not all(
        math.isfinite(value) and value >= 0 for value in (start_s, rate, cv)
    ):
        raise WorkloadError(f"{where}: rate {rate}, CV {cv}, shape {shape!r} cannot be")
    return Window(start_s, rate, cv)


def _lengths(path: Path) -> Iterator[tuple[float, Lengths, Lengths]]:
    try:
        document = json.loads(path.read_bytes())
        spans = sorted(document.items(), key=lambda item: float(item[0]))
    except (OSError, ValueError, AttributeError) as error:
        raise WorkloadError(f"{path}: {error}") from None
    for start, span in spans:
        prompt = _distribution(f"{path}, window {start}", span, "input_tokens")
        output = _distribution(f"{path}, window {start}", span, "output_tokens")
        if prompt is not None and output is not None:
            yield float(start), prompt, output


def _distribution(where: str, span: object, name: str) -> Lengths | None:
    """None where the window is empty."""
    try:
        found = ast.literal_eval(span[name])  # type: ignore[index]
        pairs = sorted((int(value), float(share)) for value, share in found.items())
    except (TypeError, KeyError, ValueError, SyntaxError, AttributeError, MemoryError):
        raise WorkloadError(f"{where}: {name} is not a distribution of lengths") from None
    if any(value < 0 or not share >= 0 for value, share in pairs):
        raise WorkloadError(f"{where}: {name} has a negative length or share")
    bounds = tuple(itertools.accumulate(share for _, share in pairs))
    return Lengths(tuple(value for value, _ in pairs), bounds) if pairs and bounds[-1] > 0 else None
